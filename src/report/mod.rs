//! What a person or a program reads: functions of a record that only format.

pub mod json;
pub mod table;
mod wrap;
