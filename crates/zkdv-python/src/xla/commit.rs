//! The XLA custom call `zkdv_commit`: digests and probes of all leaves of a training state, inside the training program.
//!
//! | operands | |
//! |---|---|
//! | `due`: uint32 (1,) | bit 0: parameter leaves are due; bit 1: optimizer leaves are due |
//! | leaves | those of the parameters, then those of the optimizer, in the order of the schema |
//! | `signs`: uint32 (S,) | sign words of all probed leaves, joined in the same order |
//!
//! | attributes | |
//! |---|---|
//! | `parameters`: int64 | how many of the leaves are parameters |
//! | `probe_ratio`: float64 | what part of a last dimension a probe keeps |
//!
//! | results, for L leaves | |
//! |---|---|
//! | `digests`: uint32 (2 L, 8) | digests of the leaves, then those of their probes' bytes; 32 bytes as 8 little-endian words |
//! | `probes32`: float32 (P32,) | the binary32 probes, joined |
//! | `probes64`: float64 (P64,) | the binary64 probes, joined |
//!
//! What is not due is zeros, and its leaves are not read.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{process, ptr};

use zkdv_hash::commit::{self, LeafInput, Outputs};

use super::abi;
use super::element::ElementType;
use super::frame::{Frame, Operand, ResultBuffer};
use crate::errors::panic_message;
use crate::pool;

const NAME: &str = "zkdv_commit";
const PARAMETERS_DUE: u32 = 1;
const OPTIMIZER_DUE: u32 = 2;

/// What XLA calls.
pub(crate) extern "C" fn zkdv_commit(frame: *mut abi::CallFrame) -> *mut abi::Error {
    // SAFETY: XLA calls this with a frame that lasts as long as the call.
    let Some(frame) = (unsafe { Frame::new(frame) }) else {
        // Without a frame there is no way to report an error, and to go on would pass off garbage as digests.
        eprintln!("{NAME}: this XLA hands over a call frame of another layout; install a zkdv that was built for it");
        process::abort();
    };
    // Unwinding must not cross into C++.
    match catch_unwind(AssertUnwindSafe(|| respond(&frame))) {
        Ok(Ok(())) => ptr::null_mut(),
        Ok(Err(message)) => frame.error(abi::ERROR_INVALID_ARGUMENT, &format!("{NAME}: {message}")),
        Err(panic) => {
            let message = format!("{NAME}: internal error, please report it: {}", panic_message(&*panic));
            frame.error(abi::ERROR_INTERNAL, &message)
        }
    }
}

fn respond(frame: &Frame<'_>) -> Result<(), String> {
    if frame.answer_metadata() || !frame.is_execution() {
        return Ok(());
    }
    let [parameters, ratio] = frame.scalars(["parameters", "probe_ratio"])?;
    let parameters = parameters.int64("parameters")?;
    let ratio = ratio.float64("probe_ratio")?;
    let operands = frame.operands()?;
    let results = frame.results()?;
    Frame::check_disjoint(&operands, &results)?;

    let [due, operands @ .., signs] = operands.as_slice() else {
        return Err(format!(
            "takes due, the leaves and signs; got {} operands",
            operands.len()
        ));
    };
    let due = due_flags(due)?;
    let signs = signs.words("signs")?;
    let parameters = usize::try_from(parameters)
        .ok()
        .filter(|&count| count <= operands.len())
        .ok_or_else(|| {
            format!(
                "attribute parameters is {parameters}, but there are {} leaves",
                operands.len()
            )
        })?;
    let inputs = operands
        .iter()
        .enumerate()
        .map(|(index, operand)| {
            let flag = if index < parameters {
                PARAMETERS_DUE
            } else {
                OPTIMIZER_DUE
            };
            leaf_input(index, operand, due & flag != 0)
        })
        .collect::<Result<Vec<_>, _>>()?;

    let found = results.len();
    let [digests, probes32, probes64] = <[ResultBuffer<'_>; 3]>::try_from(results)
        .map_err(|_| format!("gives digests, probes32 and probes64; {found} results were asked for"))?;
    let wanted = [2 * inputs.len() as u64, 8];
    if digests.shape != wanted {
        return Err(format!(
            "result digests must have shape {wanted:?} for {} leaves, not {:?}",
            inputs.len(),
            digests.shape
        ));
    }
    let words = digests.into_slice::<u32>("digests")?;
    let (rows, _) = bytemuck::cast_slice_mut::<u32, u8>(words).as_chunks_mut::<32>();
    let (digests, probe_digests) = rows.split_at_mut(inputs.len());
    let outputs = Outputs {
        digests,
        probe_digests,
        probes32: probes32.into_vector("probes32")?,
        probes64: probes64.into_vector("probes64")?,
    };
    // Small calls stay on XLA's thread: waking the pool would take longer.
    pool::run_if(!commit::is_small(&inputs), || {
        commit::leaves(&inputs, ratio, signs, outputs)
    })
    .map_err(|error| error.to_string())
}

fn due_flags(due: &Operand<'_>) -> Result<u32, String> {
    match due.words("due")? {
        &[flags] if flags & !(PARAMETERS_DUE | OPTIMIZER_DUE) == 0 => Ok(flags),
        &[flags] => Err(format!("due is {flags}, but only bits 0 and 1 have a meaning")),
        words => Err(format!("due must have shape [1], not [{}]", words.len())),
    }
}

fn leaf_input<'call>(index: usize, operand: &'call Operand<'call>, due: bool) -> Result<LeafInput<'call>, String> {
    let dtype = operand
        .element
        .dtype()
        .ok_or_else(|| format!("leaf {index} is {}, which cannot be committed to", operand.element))?;
    Ok(LeafInput {
        dtype,
        shape: &operand.shape,
        bytes: operand.bytes,
        due,
    })
}

impl Operand<'_> {
    /// The elements of a vector of uint32.
    fn words(&self, name: &str) -> Result<&[u32], String> {
        if self.element != ElementType::U32 || self.shape.len() != 1 {
            return Err(format!(
                "{name} must be a vector of uint32, not {} of shape {:?}",
                self.element, self.shape
            ));
        }
        // An empty slice points nowhere, so it need not be aligned.
        if self.bytes.is_empty() {
            return Ok(&[]);
        }
        bytemuck::try_cast_slice(self.bytes).map_err(|_| format!("{name} is not aligned for uint32"))
    }
}
