//! Public bug reports of other programs that this one could repeat: the right behaviour of each, by group. README.md beside
//! this file says which test holds which entry.

mod chat;
mod determinism;
mod files;
mod json;
mod loading;
mod sampling;
mod stops;
mod text;
mod values;
