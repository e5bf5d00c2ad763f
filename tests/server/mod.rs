//! The program with a server as its model, on a stand-in that a tiny checkpoint is behind: the same numbers as without it, what is
//! refused and how, and the manners of the network.

mod check;
mod faults;
mod hostile;
mod manners;
mod parity;
mod real;
mod route;
mod stand_in;

use crate::program::{Program, Ran};

/// A short reply.
const SHORT: [&str; 4] = ["--max-new-tokens", "6", "-p", "法国"];

/// A greedy run alone, of which 50 candidates are shown.
const GREEDY: [&str; 4] = ["--server-top", "50", "--samples", "0"];

/// Samples of three settings and a nucleus; the last setting draws from the tail.
const SAMPLED: [&str; 4] = ["--samples", "3", "--temps", "0.3,1.0,1.5"];

/// Runs the main command on a server and returns what became of it; JSON goes to standard output.
fn ask(program: &Program, url: &str, more: &[&str]) -> Ran {
    let arguments = ["--json", "--server", url];
    let arguments = arguments.iter().chain(&SHORT).chain(more);
    program.run(&arguments.collect::<Vec<_>>())
}
