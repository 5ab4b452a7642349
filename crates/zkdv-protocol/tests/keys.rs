//! Identity keys on disk, and signers that live elsewhere.
#![allow(clippy::unwrap_used, reason = "a test fails where it can't go on")]

mod sample;

use sample::key;
use std::fs;
use std::path::Path;
use tempfile::tempdir;
use zkdv_protocol::key::{ExternalSigner, IdentityKey, KeyError, PublicKey, Signer, SignerError};

#[test]
fn a_key_that_was_generated_is_loaded_again() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("zkdv").join("identity.pem");
    let generated = IdentityKey::generate(&path).unwrap();
    let loaded = IdentityKey::load(&path).unwrap();
    assert_eq!(generated.public_key(), loaded.public_key());
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("-----BEGIN PRIVATE KEY-----\n"), "PKCS#8");
    assert_eq!(
        fs::read_dir(path.parent().unwrap()).unwrap().count(),
        1,
        "nothing else is left in the folder"
    );
}

#[cfg(unix)]
#[test]
fn a_generated_key_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let folder = tempdir().unwrap();
    let path = folder.path().join("a/b/identity.pem");
    IdentityKey::generate(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    assert_eq!(mode(&folder.path().join("a")), 0o700);
}

#[test]
fn a_key_is_never_overwritten() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("identity.pem");
    let first = IdentityKey::generate(&path).unwrap();
    let error = IdentityKey::generate(&path).unwrap_err();
    assert!(matches!(error, KeyError::Exists { .. }), "{error}");
    assert_eq!(IdentityKey::load(&path).unwrap().public_key(), first.public_key());
}

#[cfg(unix)]
#[test]
fn a_key_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempdir().unwrap();
    let path = folder.path().join("identity.pem");
    IdentityKey::generate(&path).unwrap();
    for mode in [0o640, 0o604, 0o644, 0o660, 0o620, 0o601] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let message = IdentityKey::load(&path).unwrap_err().to_string();
        assert!(
            message.contains(&format!("mode {mode:04o}")) && message.contains("chmod 600"),
            "{message}"
        );
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    IdentityKey::load(&path).unwrap();
}

#[test]
fn what_is_no_key_is_refused_without_showing_it() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("identity.pem");
    assert!(matches!(IdentityKey::load(&path), Err(KeyError::Missing { .. })));
    IdentityKey::generate(&path).unwrap();
    let good = fs::read_to_string(&path).unwrap();
    let secret: String = good.lines().nth(1).unwrap().to_owned();
    let wrong: [Vec<u8>; 6] = [
        Vec::new(),
        b"not a key".to_vec(),
        vec![0xff; 100],
        good.replace("PRIVATE", "EC PRIVATE").into_bytes(),
        good.replace(&secret, &secret[..secret.len() - 8]).into_bytes(),
        good.repeat(1000).into_bytes(),
    ];
    for content in wrong {
        fs::write(&path, &content).unwrap();
        let error = IdentityKey::load(&path).unwrap_err();
        assert!(matches!(error, KeyError::Format { .. }), "{error}");
        assert!(!error.to_string().contains(&secret[..8]), "{error}");
    }
}

#[test]
fn nothing_prints_a_secret() {
    let folder = tempdir().unwrap();
    let identity = IdentityKey::generate(&folder.path().join("identity.pem")).unwrap();
    assert_eq!(
        format!("{identity:?}"),
        format!("IdentityKey({:?})", identity.public_key())
    );
    let session = key(7);
    assert_eq!(
        format!("{session:?}"),
        format!("SessionKey({:?})", session.public_key())
    );
}

#[test]
fn public_keys_come_back_from_pem() {
    let public = key(7).public_key();
    let pem = public.to_pem().unwrap();
    assert!(pem.starts_with("-----BEGIN PUBLIC KEY-----\n"));
    assert_eq!(PublicKey::from_pem(&pem), Some(public));
    assert_eq!(
        PublicKey::from_pem("-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n"),
        None
    );
}

#[test]
fn an_external_signer_is_held_to_its_public_key() {
    let sign_with = |number: u8, length: usize| {
        ExternalSigner::new(key(7).public_key(), move |message| {
            Ok(key(number).sign(message)?.into_iter().cycle().take(length).collect())
        })
        .unwrap()
    };
    assert_eq!(
        sign_with(7, 64).sign(b"message").unwrap(),
        key(7).sign(b"message").unwrap()
    );
    assert!(matches!(
        sign_with(8, 64).sign(b"message"),
        Err(SignerError::Mismatch { .. })
    ));
    assert!(matches!(
        sign_with(7, 63).sign(b"message"),
        Err(SignerError::Length { got: 63 })
    ));
    let failing = ExternalSigner::new(key(7).public_key(), |_| Err("the token is gone".into())).unwrap();
    assert_eq!(
        failing.sign(b"message").unwrap_err().to_string(),
        "the signer failed: the token is gone"
    );
    let weak = PublicKey::from_bytes([0; 32]);
    assert!(matches!(
        ExternalSigner::new(weak, |_| Ok(Vec::new())),
        Err(SignerError::PublicKey { .. })
    ));
}
