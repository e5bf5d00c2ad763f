//! What a person or a program reads: functions of a record that only format.

pub mod audit;
pub mod chart;
mod columns;
pub mod compare;
pub mod context;
pub mod csv;
pub mod html;
pub mod json;
pub mod markdown;
pub mod openai;
mod parting;
pub mod schema;
pub mod score;
pub mod softmax;
mod summary;
pub mod table;
mod templates;
pub mod tokens;
mod tree;
mod wrap;
