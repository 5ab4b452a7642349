//! Transcripts for tests, benchmarks and fuzzing: real keys and real commitments of a small simulated training run.
//!
//! [`Forge`] signs whatever it is given, so that attacks can be made as well. [`Run`] trains honestly on top of it, and hands
//! each body to a tamperer before it is signed, so that a lying prover's transcript is otherwise consistent.

#![allow(
    clippy::missing_panics_doc,
    clippy::cast_possible_truncation,
    reason = "for tests: small numbers, and a panic is a failed test"
)]

mod forge;
mod membership;
mod model;
mod run;
mod settings;
pub mod targets;

pub use forge::{Forge, TestKey};
pub use model::Model;
pub use run::{PROGRAM, Run, Tamper, stream_transcript, write_transcript};
pub use settings::{AttestStyle, CheckStyle, Ending, Resume, Settings};

use crate::report::Report;
use crate::verify::{Framer, Intake, Lookup, Options, Verifier};

/// Verifies a transcript in memory, on this thread.
pub fn verify_bytes(bytes: &[u8], options: &Options) -> Report {
    let mut lookup = bytes;
    verify_with(bytes, options, &mut lookup)
}

/// The same, with something to look things up in.
pub fn verify_with(bytes: &[u8], options: &Options, lookup: &mut dyn Lookup) -> Report {
    let mut framer = Framer::new(bytes);
    let mut intake = Intake::new();
    let mut verifier = Verifier::new(options, lookup);
    while let Some(frame) = framer.next_frame().expect("memory can be read") {
        verifier.push(intake.take(frame).judge());
    }
    verifier.finish()
}
