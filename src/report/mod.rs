//! What a person or a program reads: functions of a record that only format.

mod columns;
pub mod context;
pub mod json;
mod parting;
pub mod score;
pub mod softmax;
mod summary;
pub mod table;
pub mod tokens;
mod tree;
mod wrap;
