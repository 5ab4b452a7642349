//! Verification of folders and files on disk, on all cores.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use zkdv_hash::leaf;
use zkdv_protocol::cbor::Value;
use zkdv_protocol::file::RECORDS_FILE;
use zkdv_protocol::record::{Body, Sampling};
use zkdv_protocol::report::{Outcome, Report};
use zkdv_protocol::testing::{PROGRAM, Run, Settings, verify_bytes, write_transcript};
use zkdv_protocol::verify::{Options, VerifyError, verify};
use zkdv_protocol::violation::Code;

fn settings() -> Settings {
    Settings {
        sampling: Sampling::Probability(1.0),
        ..Settings::default()
    }
}

fn program_path(folder: &Path) -> PathBuf {
    folder.join("programs").join(format!("{}.bin", leaf::digest(PROGRAM)))
}

/// A run's folder with these records.
fn folder(records: &[u8]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::create_dir(folder.path().join("programs")).expect("can be made");
    fs::write(program_path(folder.path()), PROGRAM).expect("can be written");
    fs::write(folder.path().join(RECORDS_FILE), records).expect("can be written");
    folder
}

fn honest() -> TempDir {
    folder(&write_transcript(&settings()).bytes())
}

fn report(path: &Path) -> Report {
    verify(path, &Options::default(), &mut |_, _| ControlFlow::Continue(())).expect("can be read")
}

#[track_caller]
fn assert_code(code: Code, report: &Report) {
    assert_eq!(report.violations.len(), 1, "{:#?}", report.violations);
    assert_eq!(report.violations[0].code, code);
}

#[test]
fn a_folder_passes_with_its_programs_and_a_file_says_that_none_were_looked_at() {
    let folder = honest();
    let whole = report(folder.path());
    assert_eq!(whole.verdict, Outcome::Passed, "{:#?}", whole.violations);
    assert!(!whole.warnings.iter().any(|warning| warning.contains("programs")));
    let alone = report(&folder.path().join(RECORDS_FILE));
    assert_eq!(alone.verdict, Outcome::Passed);
    assert!(alone.warnings.iter().any(|warning| warning.contains("programs")));
}

#[test]
fn programs_are_missing_or_other_ones() {
    let folder = honest();
    let program = program_path(folder.path());
    fs::write(&program, b"another program of th").expect("can be written");
    assert_code(Code::ProgramDigest, &report(folder.path()));
    fs::write(&program, vec![b'x'; PROGRAM.len()]).expect("can be written");
    assert_code(Code::ProgramDigest, &report(folder.path()));
    fs::remove_file(&program).expect("is there");
    assert_code(Code::ProgramMissing, &report(folder.path()));
    fs::create_dir(&program).expect("can be made");
    assert_code(Code::ProgramMissing, &report(folder.path()));
}

#[cfg(unix)]
#[test]
fn links_inside_a_folder_are_not_followed() {
    use std::os::unix::fs::symlink;

    let folder = honest();
    let elsewhere = tempfile::tempdir().expect("a temporary folder");
    let target = elsewhere.path().join("program");
    fs::write(&target, PROGRAM).expect("can be written");
    let program = program_path(folder.path());
    fs::remove_file(&program).expect("is there");
    symlink(&target, &program).expect("can be made");
    assert_code(Code::ProgramMissing, &report(folder.path()));

    let programs = folder.path().join("programs");
    fs::remove_dir_all(&programs).expect("is there");
    fs::copy(&target, elsewhere.path().join(program.file_name().expect("has a name"))).expect("can be copied");
    symlink(elsewhere.path(), &programs).expect("can be made");
    assert_code(Code::ProgramMissing, &report(folder.path()));

    let records = folder.path().join(RECORDS_FILE);
    let moved = elsewhere.path().join(RECORDS_FILE);
    fs::rename(&records, &moved).expect("can be moved");
    symlink(&moved, &records).expect("can be made");
    let error = unreadable(folder.path());
    assert!(error.to_string().contains("link"), "{error}");
    // What a person names is theirs to link.
    assert_eq!(report(&records).verdict, Outcome::Passed);
}

#[cfg(unix)]
#[test]
fn pipes_are_not_waited_for() {
    let folder = honest();
    let pipe = |path: &Path| {
        let made = std::process::Command::new("mkfifo")
            .arg(path)
            .status()
            .expect("mkfifo is there");
        assert!(made.success());
    };
    let program = program_path(folder.path());
    fs::remove_file(&program).expect("is there");
    pipe(&program);
    assert_code(Code::ProgramMissing, &report(folder.path()));
    let records = folder.path().join(RECORDS_FILE);
    fs::remove_file(&records).expect("is there");
    pipe(&records);
    for path in [folder.path(), &records] {
        assert!(unreadable(path).to_string().contains("not a regular file"));
    }
}

#[track_caller]
fn unreadable(path: &Path) -> io::Error {
    match verify(path, &Options::default(), &mut |_, _| ControlFlow::Continue(())) {
        Err(VerifyError::Unreadable(error)) => error.source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_not_there_is_said() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let error = unreadable(folder.path());
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().contains(RECORDS_FILE), "{error}");
    assert_eq!(unreadable(&folder.path().join("none")).kind(), io::ErrorKind::NotFound);
}

/// Threads and pieces of work change nothing, wherever the damage is.
#[test]
fn files_give_the_report_that_memory_gives() {
    let forge = write_transcript(&Settings {
        updates: 200,
        check_delay: 1,
        ..settings()
    });
    let bytes = forge.bytes();
    for (start, length) in [
        (0, 0),
        (0, 3),
        (5000, 1),
        (40_000, 30_000),
        (bytes.len() - 100, 100),
        (20_000, 1),
    ] {
        let mut damaged = bytes.clone();
        damaged[start..start + length].fill(0x5a);
        let folder = folder(&damaged);
        let on_disk = report(&folder.path().join(RECORDS_FILE));
        assert_eq!(on_disk, verify_bytes(&damaged, &Options::default()));
    }
}

#[test]
fn long_records_go_alone_and_come_back_in_order() {
    let mut environments = 0_usize;
    let mut tamper = |mut body: Body| {
        if let Body::Environment(environment) = &mut body {
            let long = Value::Bytes(vec![7; 15 << 20]);
            environment.entries.insert("long".into(), long);
            environments += 1;
        }
        vec![body]
    };
    let mut run = Run::new(settings(), &mut tamper);
    run.train();
    let folder = folder(&run.forge.bytes());
    let report = report(folder.path());
    assert_eq!(report.verdict, Outcome::Passed, "{:#?}", report.violations);
    assert_eq!(report.environment, None);
    assert!(report.warnings.iter().any(|warning| warning.contains("environment")));
}

#[test]
fn progress_reaches_the_end_and_may_stop() {
    let forge = write_transcript(&Settings {
        updates: 300,
        ..settings()
    });
    let folder = folder(&forge.bytes());
    let length = forge.bytes().len() as u64;
    let mut seen = vec![];
    let mut note = |done, total| {
        assert_eq!(total, length);
        seen.push(done);
        ControlFlow::Continue(())
    };
    verify(folder.path(), &Options::default(), &mut note).expect("can be read");
    assert!(seen.is_sorted());
    assert_eq!(seen.last(), Some(&length));
    let stopped = verify(folder.path(), &Options::default(), &mut |_, _| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(VerifyError::Stopped)), "{stopped:?}");
}

/// Patterns that ask for much work at every byte. Time that grows with the square of their length would be hours.
#[test]
fn hostile_patterns_take_time_in_proportion() {
    const LENGTH: usize = 6 << 20;
    let start = [0xd2, 0x84, 0x43, 0xa1, 0x01, 0x27, 0xa0];
    let root = write_transcript(&settings()).records[0].clone();
    for pattern in [
        start.to_vec(),
        [&start[..], &[0x5a, 0x00, 0xff, 0xff, 0x00]].concat(),
        [&start[..], &[0x5a, 0x00, 0x00, 0xff, 0x00]].concat(),
        [&start[..], &[0x40, 0x58, 0x40], &[0; 64]].concat(),
        [&start[..], &[0x42, 0xa4, 0x01, 0x58, 0x40], &[0; 64]].concat(),
        vec![0xd2],
        vec![0x81],
        vec![0x9f],
        vec![0x9b, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff],
        [&root[..], &[0x82]].concat(),
        [&root[..], &[0x9b, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff]].concat(),
    ] {
        let mut bytes = pattern.repeat(LENGTH / pattern.len());
        bytes.extend_from_slice(&root);
        let folder = folder(&bytes);
        let report = report(folder.path());
        assert_eq!(report.verdict, Outcome::Failed);
        assert_eq!(report.bytes, bytes.len() as u64);
    }
}
