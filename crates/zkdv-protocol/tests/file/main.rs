//! The transcript on disk: one writer, nothing overwritten, nothing lost that was whole.
#![allow(clippy::unwrap_used, reason = "a test fails where it can't go on")]

mod processes;
#[path = "../sample/mod.rs"]
mod sample;

use sample::{configuration, digest, environment, key, program, root, root_without_keys, schema, state, update};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use tempfile::{TempDir, tempdir};
use zkdv_protocol::cbor::Value;
use zkdv_protocol::chain::ChainError;
use zkdv_protocol::file::{FileError, RECORDS_FILE, TranscriptFile};
use zkdv_protocol::key::{ExternalSigner, Signer};
use zkdv_protocol::reader::RecordReader;
use zkdv_protocol::record::{Body, CloseReason, Durability, RecordType, Sampling, StateReason};
use zkdv_protocol::report::Report;
use zkdv_protocol::verify::{Options, verify};

fn root_value(durability: Durability) -> Value {
    let mut root = root();
    root.configuration.durability = durability;
    root.configuration.sampling = Sampling::Probability(0.0);
    root_without_keys(root)
}

fn create(folder: &Path) -> Result<TranscriptFile, FileError> {
    TranscriptFile::create(folder, &root_value(Durability::Interval), &key(1))
}

/// A transcript that is ready for update 0.
fn ready(folder: &Path, durability: Durability) -> TranscriptFile {
    let mut file = TranscriptFile::create(folder, &root_value(durability), &key(1)).unwrap();
    for body in [
        environment(),
        Body::Schema(schema()),
        program(),
        state(0, StateReason::Start),
    ] {
        file.append(body).unwrap();
    }
    file
}

fn next_update(file: &TranscriptFile) -> Body {
    Body::Update(update(&configuration(), file.chain().counts().updates))
}

fn close(file: &mut TranscriptFile) {
    file.append(state(file.chain().counts().updates, StateReason::Close))
        .unwrap();
    file.append(Body::Close(file.chain().counts().close(CloseReason::Finished)))
        .unwrap();
}

fn records(folder: &Path) -> PathBuf {
    folder.join(RECORDS_FILE)
}

/// Verifies the records by themselves: there are no files of programs here.
fn verified(folder: &Path) -> Report {
    verify(&records(folder), &Options::default(), &mut |_, _| {
        ControlFlow::Continue(())
    })
    .unwrap()
}

/// How many whole records there are, and whether anything else follows.
fn whole_records(folder: &Path) -> (usize, bool) {
    let read: Vec<_> = RecordReader::new(fs::File::open(records(folder)).unwrap()).collect();
    let whole = read.iter().filter(|record| record.is_ok()).count();
    (whole, whole < read.len())
}

#[test]
fn what_is_appended_verifies() {
    let folder = tempdir().unwrap();
    let run = folder.path().join("a/b/run");
    let mut file = ready(&run, Durability::Interval);
    for _ in 0..10 {
        let body = next_update(&file);
        let appended = file.append(body).unwrap();
        assert_eq!((appended.seq + 1, appended.digest), (file.records(), file.head()));
    }
    close(&mut file);
    assert!(file.is_closed());
    let report = verified(&run);
    assert_eq!(report.violations, []);
    assert!(report.closed);
    assert_eq!(
        (report.head, report.root, report.updates),
        (Some(file.head()), Some(file.root()), 10)
    );
    assert_eq!(file.length().0, fs::metadata(file.path()).unwrap().len());
}

#[test]
fn a_body_given_as_a_value_is_read_by_the_grammar() {
    let folder = tempdir().unwrap();
    let mut file = create(folder.path()).unwrap();
    file.append_value(
        RecordType::Environment,
        &Value::map([("framework", Value::from("jax"))]),
    )
    .unwrap();
    let error = file
        .append_value(RecordType::Schema, &Value::map([("parameters", Value::Null)]))
        .unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("`schema`") && message.contains("body.parameters: expected a list"),
        "{message}"
    );
    file.append_value(RecordType::Schema, &Body::Schema(schema()).to_value())
        .unwrap();
}

#[test]
fn the_two_keys_of_the_root_are_not_the_callers_to_give() {
    let folder = tempdir().unwrap();
    let with_key = root_value(Durability::Interval).with("session-key", Some(key(3).public_key()));
    let error = TranscriptFile::create(folder.path(), &with_key, &key(1)).unwrap_err();
    assert!(
        error.to_string().contains("body.session-key: expected no entry"),
        "{error}"
    );
    assert!(!records(folder.path()).exists());
}

#[test]
fn a_refused_record_leaves_no_trace() {
    let folder = tempdir().unwrap();
    let mut file = ready(folder.path(), Durability::Interval);
    let before = fs::read(file.path()).unwrap();
    assert!(matches!(
        file.append(environment()),
        Err(FileError::Chain(ChainError::Order(_)))
    ));
    assert_eq!(fs::read(file.path()).unwrap(), before);
    let body = next_update(&file);
    file.append(body).unwrap();
}

#[test]
fn a_transcript_is_never_overwritten() {
    let folder = tempdir().unwrap();
    let mut file = ready(folder.path(), Durability::Interval);
    for _ in 0..2 {
        let body = next_update(&file);
        file.append(body).unwrap();
    }
    file.release().unwrap();
    let before = fs::read(file.path()).unwrap();
    let message = create(folder.path()).unwrap_err().to_string();
    for part in [
        folder.path().to_str().unwrap(),
        "not closed",
        "2 updates in 7 records",
        "resume=True",
        "another path",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(fs::read(file.path()).unwrap(), before);
}

#[test]
fn a_closed_transcript_is_not_offered_for_resuming() {
    let folder = tempdir().unwrap();
    let mut file = ready(folder.path(), Durability::Interval);
    let body = next_update(&file);
    file.append(body).unwrap();
    close(&mut file);
    let message = create(folder.path()).unwrap_err().to_string();
    assert!(
        message.contains("closed, of 1 update in 8 records") && message.contains("another path"),
        "{message}"
    );
    assert!(!message.contains("resume"), "{message}");
}

#[test]
fn a_torn_or_foreign_file_is_described_and_kept() {
    let folder = tempdir().unwrap();
    let mut file = ready(folder.path(), Durability::Interval);
    file.release().unwrap();
    let whole = fs::read(file.path()).unwrap();
    let last = RecordReader::new(whole.as_slice()).last().unwrap().unwrap().offset;
    fs::write(file.path(), &whole[..whole.len() - 1]).unwrap();
    let message = create(folder.path()).unwrap_err().to_string();
    assert!(
        message.contains(&format!(
            "in 4 records, with bytes from {last} on that are no whole record"
        )),
        "{message}"
    );
    fs::write(file.path(), "notes of mine").unwrap();
    let message = create(folder.path()).unwrap_err().to_string();
    assert!(message.contains("in 0 records, with bytes from 0 on"), "{message}");
    assert_eq!(fs::read(file.path()).unwrap(), b"notes of mine");
}

#[test]
fn an_empty_file_is_no_transcript() {
    let folder = tempdir().unwrap();
    fs::write(records(folder.path()), "").unwrap();
    create(folder.path()).unwrap();
    assert_eq!(whole_records(folder.path()), (1, false));
}

#[test]
fn a_start_that_fails_stands_in_nobodys_way() {
    let folder = tempdir().unwrap();
    let failing = ExternalSigner::new(key(1).public_key(), |_| Err("the token is gone".into())).unwrap();
    let error = TranscriptFile::create(folder.path(), &root_value(Durability::Interval), &failing).unwrap_err();
    assert!(error.to_string().contains("the token is gone"), "{error}");
    create(folder.path()).unwrap();
}

#[test]
fn a_path_that_is_no_folder_is_refused() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    fs::write(&path, "tensors").unwrap();
    assert!(matches!(create(&path), Err(FileError::NotAFolder { .. })));
    assert!(create(&path).unwrap_err().to_string().contains("choose another path"));
    assert!(matches!(create(&path.join("run")), Err(FileError::Folder { .. })));
}

#[cfg(unix)]
#[test]
fn folder_and_files_have_the_modes_that_others_get() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let folder = tempdir().unwrap();
    let run = folder.path().join("run");
    let _file = create(&run).unwrap();
    fs::create_dir(folder.path().join("plain")).unwrap();
    fs::write(folder.path().join("plain/file"), "").unwrap();
    assert_eq!(mode(&run), mode(&folder.path().join("plain")));
    assert_eq!(mode(&records(&run)), mode(&folder.path().join("plain/file")));
}

#[test]
fn a_released_folder_is_anothers() {
    let folder = tempdir().unwrap();
    let mut file = ready(folder.path(), Durability::Interval);
    assert!(matches!(create(folder.path()), Err(FileError::Locked { .. })));
    let body = next_update(&file);
    file.release().unwrap();
    file.release().unwrap();
    assert!(
        matches!(create(folder.path()), Err(FileError::Exists { .. })),
        "no longer locked"
    );
    assert!(matches!(file.append(body), Err(FileError::Released { .. })));
    assert_eq!(
        fs::read(folder.path().join(".lock")).unwrap(),
        b"",
        "no machine is named in a folder that is sent away"
    );
}

#[test]
fn a_closed_transcript_releases_its_folder() {
    let folder = tempdir().unwrap();
    let mut file = ready(folder.path(), Durability::Close);
    let body = next_update(&file);
    file.append(body).unwrap();
    close(&mut file);
    assert!(
        matches!(create(folder.path()), Err(FileError::Exists { .. })),
        "no longer locked"
    );
    let message = file.append(environment()).unwrap_err().to_string();
    assert!(message.contains("nothing after `close`"), "{message}");
}

#[test]
fn a_run_of_which_nothing_was_recorded_is_set_aside_and_kept() {
    let folder = tempdir().unwrap();
    let mut aside = Vec::new();
    for bodies in [vec![], vec![environment()]] {
        let mut file = create(folder.path()).unwrap();
        for body in bodies {
            file.append(body).unwrap();
        }
        let name = format!("{RECORDS_FILE}.unused-{}", file.root());
        drop(file);
        aside.push((folder.path().join(name), fs::read(records(folder.path())).unwrap()));
        let file = create(folder.path()).unwrap();
        assert_eq!(file.set_aside(), Some(aside[aside.len() - 1].0.as_path()));
        drop(file);
        fs::remove_file(records(folder.path())).unwrap();
    }
    for (path, bytes) in aside {
        assert_eq!(fs::read(path).unwrap(), bytes);
    }
    assert_eq!(create(folder.path()).unwrap().set_aside(), None);
}

#[test]
fn whatever_holds_more_than_its_opening_stays_where_it_is() {
    let more: [fn(&Path); 5] = [
        |folder| drop(ready(folder, Durability::Interval)),
        |folder| {
            let mut file = create(folder).unwrap();
            file.append(environment()).unwrap();
            file.append(Body::Close(file.chain().counts().close(CloseReason::Finished)))
                .unwrap();
        },
        |folder| {
            let mut file = create(folder).unwrap();
            file.append(environment()).unwrap();
            drop(file);
            let mut bytes = fs::read(records(folder)).unwrap();
            bytes.extend([0xd2, 0x84]);
            fs::write(records(folder), bytes).unwrap();
        },
        |folder| fs::write(records(folder), b"notes of mine").unwrap(),
        |folder| {
            // A file of that name, whatever it is, is not replaced.
            let file = create(folder).unwrap();
            fs::write(
                folder.join(format!("{RECORDS_FILE}.unused-{}", file.root())),
                "notes of mine",
            )
            .unwrap();
        },
    ];
    for make in more {
        let folder = tempdir().unwrap();
        make(folder.path());
        let before = fs::read(records(folder.path())).unwrap();
        let error = create(folder.path()).unwrap_err();
        assert!(matches!(error, FileError::Exists { .. }), "{error}");
        assert!(error.to_string().contains("choose another path"), "{error}");
        assert_eq!(fs::read(records(folder.path())).unwrap(), before);
    }
}

#[test]
fn records_are_forced_to_disk_as_the_durability_says() {
    let folder = tempdir().unwrap();
    let start = |name: &str, durability| ready(&folder.path().join(name), durability);

    let mut file = start("record", Durability::Record);
    let body = next_update(&file);
    file.append(body).unwrap();
    let (written, durable) = file.length();
    assert_eq!(durable, written);

    let mut file = start("close", Durability::Close);
    let body = next_update(&file);
    file.append(body).unwrap();
    let (written, durable) = file.length();
    assert!(durable < written, "only the root is on disk");
    file.sync().unwrap();
    assert_eq!(file.length(), (written, written));
    close(&mut file);
    let (written, durable) = file.length();
    assert_eq!(durable, written);
}

#[test]
fn the_background_forces_records_to_disk() {
    let folder = tempdir().unwrap();
    let mut file = ready(folder.path(), Durability::Interval);
    for _ in 0..3 {
        let body = next_update(&file);
        file.append(body).unwrap();
        let (written, _) = file.length();
        let mut polls = 0;
        while file.length().1 < written {
            polls += 1;
            assert!(polls < 6000, "a minute later the record is not on disk");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_transcript_that_is_dropped_can_be_read_to_its_end() {
    let folder: TempDir = tempdir().unwrap();
    let head = {
        let mut file = ready(folder.path(), Durability::Interval);
        let body = next_update(&file);
        file.append(body).unwrap().digest
    };
    let last = RecordReader::new(fs::File::open(records(folder.path())).unwrap())
        .last()
        .unwrap()
        .unwrap();
    assert_eq!(last.digest(), head);
    assert_ne!(head, digest(""));
}
