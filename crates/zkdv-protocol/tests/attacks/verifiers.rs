//! What a verifier pins, requires and looks up.

use zkdv_hash::{Digest, leaf};
use zkdv_protocol::key::PublicKey;
use zkdv_protocol::record::Sampling;
use zkdv_protocol::report::Outcome;
use zkdv_protocol::testing::{PROGRAM, Settings, verify_bytes, verify_with, write_transcript};
use zkdv_protocol::verify::{Lookup, Options, ProgramFile, Requirement};
use zkdv_protocol::violation::Code;

use crate::{assert_once, options, settings};

#[test]
fn another_identity_is_found() {
    let forge = write_transcript(&settings());
    let options = Options {
        identity: Some(PublicKey::from_bytes([1; 32])),
        ..Options::default()
    };
    assert_once(Code::IdentityMismatch, &verify_bytes(&forge.bytes(), &options));
}

#[test]
fn requirements_are_conditions() {
    let forge = write_transcript(&settings());
    let edited = write_transcript(&Settings {
        small_edits: vec![5],
        ..settings()
    });
    for (forge, identity, requirement, met) in [
        (&forge, true, "closed", true),
        (&forge, true, "identity", true),
        (&forge, false, "identity", false),
        (&forge, true, "level=record", true),
        (&forge, true, "level=checked", false),
        (&forge, true, "level=audited", false),
        (&forge, true, "probability>=1", true),
        (&forge, true, "no-edits", true),
        (&edited, true, "no-edits", false),
    ] {
        let options = Options {
            identity: identity.then(|| forge.identity.public()),
            allow_edits: true,
            require: vec![requirement.parse().expect("a condition")],
            ..Options::default()
        };
        let report = verify_bytes(&forge.bytes(), &options);
        if met {
            assert_eq!(report.verdict, Outcome::Passed, "{requirement}");
        } else {
            assert_once(Code::RequirementUnmet, &report);
        }
    }
    let every = write_transcript(&Settings {
        sampling: Sampling::Every(1),
        ..settings()
    });
    let options = Options {
        require: vec![Requirement::Probability(0.1)],
        ..options(&every)
    };
    assert_once(Code::RequirementUnmet, &verify_bytes(&every.bytes(), &options));
}

#[test]
fn programs_that_are_not_there_or_other_ones() {
    let forge = write_transcript(&settings());
    let bytes = forge.bytes();
    let with = |file| verify_with(&bytes, &options(&forge), &mut Files(&bytes, file));
    assert_eq!(
        with(ProgramFile::Digest(leaf::digest(PROGRAM))).verdict,
        Outcome::Passed
    );
    assert_once(Code::ProgramDigest, &with(ProgramFile::Digest(Digest::ZERO)));
    assert_once(Code::ProgramDigest, &with(ProgramFile::OtherLength(5)));
    assert_once(
        Code::ProgramMissing,
        &with(ProgramFile::Missing("is not there".to_owned())),
    );
}

struct Files<'a>(&'a [u8], ProgramFile);

impl Lookup for Files<'_> {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read_at(offset, buffer)
    }

    fn program(&mut self, _name: &str, _length: u64) -> ProgramFile {
        self.1.clone()
    }
}
