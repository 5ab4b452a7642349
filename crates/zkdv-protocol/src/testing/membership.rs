//! What is fuzzed of proofs of membership.

use zkdv_hash::Digest;
use zkdv_hash::batch::{self, Matrix};
use zkdv_hash::rolling::Base;

use crate::membership::{Claim, CommittedUpdate, MembershipProof};

const WINDOW: usize = 3;

/// Any bytes are refused or written back byte for byte, and whatever verifies is true of the batch.
///
/// The first byte chooses a batch; the second whether a proof about it follows, or what is sought and how its proof is changed.
pub fn membership_proof(data: &[u8]) {
    let Some((&first, data)) = data.split_first() else {
        return;
    };
    let Some((&second, data)) = data.split_first() else {
        return;
    };
    let words = batch_of(first);
    let (rows, width) = shape_of(first);
    let matrix = Matrix::new(&words, rows, width).expect("the words fill the shape");
    let update = committed(&matrix);
    if second == 0 {
        judge(data, &update, &matrix);
        return;
    }
    let sought: Vec<u32> = data
        .iter()
        .take(usize::from(second % 8))
        .map(|&byte| u32::from(byte % 4))
        .collect();
    let proof = match second % 3 {
        0 => MembershipProof::of_row(&update, &matrix, usize::from(second) % (rows + 1)),
        _ => MembershipProof::of_words(&update, &matrix, &sought),
    };
    let Ok(proof) = proof else { return };
    assert_eq!(proof.verify(&update), Ok(()));
    let mut encoded = proof.encode().expect("it is small");
    judge(&encoded, &update, &matrix);
    for change in data[data.len().min(8)..].as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % encoded.len();
        encoded[at] ^= change[2];
        judge(&encoded, &update, &matrix);
    }
}

fn judge(bytes: &[u8], update: &CommittedUpdate, matrix: &Matrix<'_>) {
    let Ok(proof) = MembershipProof::decode(bytes) else {
        return;
    };
    assert_eq!(proof.encode().as_deref(), Ok(bytes));
    if proof.verify(update).is_err() {
        return;
    }
    let words = proof.words();
    let rows = || (0..matrix.rows()).filter_map(|row| matrix.row(row).ok());
    let holds = match &proof.claim {
        Claim::Row(opening) => {
            usize::try_from(opening.row).is_ok_and(|row| matrix.row(row).is_ok_and(|row| row == words))
        }
        Claim::Window { .. } => rows().any(|row| row.windows(words.len()).any(|window| window == words)),
        Claim::Absent { .. } => !rows().any(|row| row.windows(words.len()).any(|window| window == words)),
    };
    assert!(holds, "{proof:?}");
}

fn shape_of(choice: u8) -> (usize, usize) {
    let width = usize::from(choice / 5 % 9);
    (usize::from(choice % 5), if choice > 128 { 9 * width } else { width })
}

/// Words below 4, so that windows repeat; for wide batches more, so that the list has several blocks.
fn batch_of(choice: u8) -> Vec<u32> {
    let (rows, width) = shape_of(choice);
    let spread = if choice > 128 { 251 } else { 4 };
    (0..rows * width)
        .map(|index| {
            (index as u32)
                .wrapping_mul(2_654_435_761)
                .wrapping_add(u32::from(choice))
                % spread
        })
        .collect()
}

fn committed(matrix: &Matrix<'_>) -> CommittedUpdate {
    let run = Digest::from_bytes([7; 32]);
    let commitment = batch::commit(matrix, WINDOW, &Base::from_root(&run)).expect("a window of words");
    CommittedUpdate {
        run,
        record: 5,
        update: 2,
        batch: commitment.digest(),
        rolling_window: WINDOW as u64,
    }
}

/// Proofs of each kind as they are, and choices that lead to each.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for first in [23, 44, 203, 219] {
        let words = batch_of(first);
        let (rows, width) = shape_of(first);
        let matrix = Matrix::new(&words, rows, width).expect("the words fill the shape");
        let update = committed(&matrix);
        let row = matrix.row(rows - 1).expect("a last row");
        let proofs = [
            MembershipProof::of_row(&update, &matrix, rows - 1),
            MembershipProof::of_words(&update, &matrix, &row[..2]),
            MembershipProof::of_words(&update, &matrix, &[9, 9, 9, 9]),
        ];
        for proof in proofs {
            let encoded = proof
                .map(|proof| proof.encode().expect("it is small"))
                .expect("it can be shown");
            seeds.push([&[first, 0][..], &encoded].concat());
        }
        seeds.push(vec![first, 3, 0, 0, 0, 0, 0, 0, 0, 0, 40, 0, 1, 90, 0, 128]);
        seeds.push(vec![first, 5, 1, 2, 3, 1, 2, 3, 1, 2, 100, 0, 4, 200, 0, 8]);
    }
    seeds
}
