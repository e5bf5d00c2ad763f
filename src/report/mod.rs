//! What a person or a program reads: functions of a record that only format.

mod columns;
pub mod context;
pub mod json;
pub mod softmax;
pub mod table;
pub mod tokens;
mod wrap;
