//! Sealed programs: which there are, which update ran which, and whether their files are there.

use std::collections::BTreeMap;

use zkdv_hash::Digest;

use super::lookup::{Lookup, ProgramFile};
use crate::limits::{MAX_PROGRAM_BYTES, MAX_PROGRAMS};
use crate::record::{ProgramBody, ProgramRole};
use crate::report::ProgramReport;
use crate::violation::{Code, Place};

/// The programs of a transcript.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    all: Vec<Program>,
    /// The place in `all` of those that may be named now, by `seq`.
    by_seq: BTreeMap<u64, usize>,
    /// Bytes of their files, as committed.
    bytes: u64,
    /// Whether program records may have been lost.
    lost: bool,
}

#[derive(Debug)]
struct Program {
    place: Place,
    role: ProgramRole,
    digest: Digest,
    length: u64,
    file_name: String,
    updates: u64,
}

impl Programs {
    /// Enters a program. Says whether there was room for it.
    pub(crate) fn add(&mut self, place: Place, seq: u64, body: &ProgramBody) -> bool {
        let bytes = self.bytes.saturating_add(body.length);
        if self.all.len() >= MAX_PROGRAMS || bytes > MAX_PROGRAM_BYTES {
            return false;
        }
        self.bytes = bytes;
        self.by_seq.insert(seq, self.all.len());
        self.all.push(Program {
            place,
            role: body.role,
            digest: body.digest,
            length: body.length,
            file_name: body.file_name(),
            updates: 0,
        });
        true
    }

    /// Records may have been lost, and programs among them.
    pub(crate) fn lose(&mut self) {
        self.lost = true;
    }

    /// Another transcript begins, which names its own programs.
    pub(crate) fn begin_again(&mut self) {
        self.by_seq.clear();
    }

    /// An update names the program that ran. Says whether it may.
    pub(crate) fn run(&mut self, seq: u64) -> bool {
        match self.by_seq.get(&seq).and_then(|&index| self.all.get_mut(index)) {
            Some(program) => {
                program.updates += 1;
                program.role == ProgramRole::Replay
            }
            None => self.lost,
        }
    }

    /// An update stands under this attest program. Gives its digest; none where the program is not known.
    pub(crate) fn attest(&mut self, seq: u64) -> Option<Digest> {
        let program = self.by_seq.get(&seq).and_then(|&index| self.all.get_mut(index))?;
        program.updates += 1;
        Some(program.digest)
    }

    /// Looks for the files, each once for every length that is stated of it. Says whether there was a folder to look in.
    pub(crate) fn check_files(&self, lookup: &mut dyn Lookup, mut found: impl FnMut(Code, Place, String)) -> bool {
        let mut files: BTreeMap<(&str, u64), &Program> = BTreeMap::new();
        for program in &self.all {
            files.entry((&program.file_name, program.length)).or_insert(program);
        }
        let mut files: Vec<_> = files.into_values().collect();
        files.sort_by_key(|program| program.place.record);
        for program in files {
            let Program {
                file_name,
                length,
                digest,
                place,
                ..
            } = program;
            match lookup.program(file_name, *length) {
                ProgramFile::Unknown => return false,
                ProgramFile::Digest(got) if got == *digest => {}
                ProgramFile::Digest(got) => {
                    found(
                        Code::ProgramDigest,
                        *place,
                        format!("programs/{file_name} has the digest {got}"),
                    );
                }
                ProgramFile::OtherLength(got) => {
                    found(
                        Code::ProgramDigest,
                        *place,
                        format!("programs/{file_name} has {got} bytes, {length} are committed"),
                    );
                }
                ProgramFile::Missing(why) => {
                    found(Code::ProgramMissing, *place, format!("programs/{file_name} {why}"));
                }
            }
        }
        true
    }

    pub(crate) fn report(&self) -> Vec<ProgramReport> {
        self.all
            .iter()
            .map(|program| ProgramReport {
                record: program.place.record,
                digest: program.digest,
                role: program.role.as_str(),
                updates: program.updates,
            })
            .collect()
    }
}
