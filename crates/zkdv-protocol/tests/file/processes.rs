//! Writers in processes of their own: who holds the folder, and what one leaves that is killed, or that can't write.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::tempdir;
use zkdv_protocol::file::FileError;
use zkdv_protocol::reader::RecordReader;
use zkdv_protocol::record::Durability;

use crate::{create, next_update, ready, records, verified, whole_records};

/// Starts this test program again, as another process that writes to `folder`.
fn writer_process(folder: &Path, task: &str, before: &[&str]) -> Child {
    let program = std::env::current_exe().unwrap();
    let arguments = [
        "--ignored",
        "--exact",
        "processes::writer_process_body",
        "--nocapture",
        "--test-threads=1",
    ];
    let mut command = match before {
        [] => Command::new(&program),
        [shell, options @ ..] => {
            let mut command = Command::new(shell);
            command.args(options).arg(&program);
            command
        }
    };
    command
        .args(arguments)
        .env("ZKDV_TEST_FOLDER", folder)
        .env("ZKDV_TEST_TASK", task);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// The lines that a writer process says.
fn said(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.filter_map(|line| line.split_once("writer: ").map(|(_, said)| said.to_owned()))
}

#[test]
#[ignore = "what other tests start as a process of its own"]
fn writer_process_body() {
    let Some(folder) = std::env::var_os("ZKDV_TEST_FOLDER") else {
        return;
    };
    let folder = Path::new(&folder);
    match std::env::var("ZKDV_TEST_TASK").as_deref() {
        Ok("hold") => {
            let _file = ready(folder, Durability::Interval);
            println!("writer: ready");
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
        }
        Ok("append") => {
            let mut file = ready(folder, Durability::Interval);
            loop {
                let body = next_update(&file);
                match file.append(body) {
                    Ok(appended) => println!("writer: {} {}", appended.seq, appended.digest),
                    Err(error) => {
                        println!("writer: {error}");
                        let body = next_update(&file);
                        println!("writer: {}", file.append(body).unwrap_err());
                        println!("writer: {}", file.sync().unwrap_err());
                        return;
                    }
                }
            }
        }
        Ok("create") => println!(
            "writer: {}",
            create(folder).map_or_else(|error| error.to_string(), |_| "created".to_owned())
        ),
        other => panic!("no task {other:?}"),
    }
}

#[test]
fn a_second_process_is_told_who_writes() {
    let folder = tempdir().unwrap();
    let mut child = writer_process(folder.path(), "hold", &[]);
    let mut lines = said(&mut child);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    let error = create(folder.path()).unwrap_err();
    let FileError::Locked { holder, .. } = &error else {
        panic!("{error}")
    };
    let host = gethostname::gethostname();
    assert_eq!(
        holder.to_string(),
        format!("process {} on {}", child.id(), host.display())
    );
    assert!(error.to_string().contains(&holder.to_string()), "{error}");
    // The end of its input is what it waits for.
    drop(child.stdin.take());
    assert_eq!(lines.next(), None);
    assert!(child.wait().unwrap().success());
    assert!(matches!(create(folder.path()), Err(FileError::Exists { .. })));
}

#[test]
fn a_killed_writer_leaves_what_it_has_written_and_no_lock() {
    for appended in [1, 20, 300] {
        let folder = tempdir().unwrap();
        let mut child = writer_process(folder.path(), "append", &[]);
        let mut lines = said(&mut child);
        let last = lines.nth(appended - 1).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let (whole, torn) = whole_records(folder.path());
        let (seq, digest) = last.split_once(' ').unwrap();
        let seq: usize = seq.parse().unwrap();
        assert!(whole > seq, "{whole} records, though record {seq} counted as written");
        let record = RecordReader::new(fs::File::open(records(folder.path())).unwrap())
            .nth(seq)
            .unwrap()
            .unwrap();
        assert_eq!(record.digest().to_string(), digest);
        let report = verified(folder.path());
        assert_eq!(report.violations, []);
        assert!(!report.closed);
        // A write that runs when the signal comes may end early.
        assert_eq!(report.torn_bytes > 0, torn);
        assert!(
            matches!(create(folder.path()), Err(FileError::Exists { .. })),
            "the lock ended with the process"
        );
    }
}

#[cfg(unix)]
#[test]
fn a_write_error_ends_the_transcript_at_its_last_whole_record() {
    // A limit on the size of files cuts a write short, as a full disk does. Some sizes end inside a record, whatever its length.
    for blocks in [7, 8, 9, 10, 11, 12, 13] {
        let folder = tempdir().unwrap();
        let limited = [
            "sh",
            "-c",
            &format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\""),
            "sh",
        ];
        let mut child = writer_process(folder.path(), "append", &limited);
        let lines: Vec<_> = said(&mut child).collect();
        assert!(child.wait().unwrap().success(), "{lines:?}");
        let [appended @ .., failed, again, sync] = lines.as_slice() else {
            panic!("{lines:?}")
        };
        let path = records(folder.path());
        assert!(
            failed.contains(path.to_str().unwrap()) && failed.contains("File too large"),
            "{failed}"
        );
        for later in [again, sync] {
            assert!(
                later.contains("nothing more is written") && later.contains("File too large"),
                "{later}"
            );
        }
        let (whole, more) = whole_records(folder.path());
        assert!(!more, "the part that was written is cut off");
        assert_eq!(whole, 5 + appended.len());
        assert_eq!(verified(folder.path()).violations, []);
    }
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_written_is_named() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let outer = tempdir().unwrap();
    let open_to_all = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    open_to_all(outer.path());
    let folder = outer.path().join("run");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    // The superuser may write anywhere, and so becomes somebody else, with a copy of this program that somebody else can run.
    let program = outer.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    open_to_all(&program);
    let mut command = Command::new(&program);
    if fs::metadata(&folder).unwrap().uid() == 0 {
        use std::os::unix::process::CommandExt;
        const NOBODY: u32 = 65_534;
        command.uid(NOBODY).gid(NOBODY);
    }
    command.args([
        "--ignored",
        "--exact",
        "processes::writer_process_body",
        "--nocapture",
        "--test-threads=1",
    ]);
    command
        .current_dir(outer.path())
        .env("ZKDV_TEST_FOLDER", &folder)
        .env("ZKDV_TEST_TASK", "create");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines: Vec<_> = said(&mut child).collect();
    assert!(child.wait().unwrap().success(), "{lines:?}");
    let [message] = lines.as_slice() else {
        panic!("{lines:?}")
    };
    assert!(
        message.contains(folder.to_str().unwrap()) && message.contains("Permission denied"),
        "{message}"
    );
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}
