//! Whether a check says what it may say.

use zkdv_hash::challenge::Draw;
use zkdv_hash::sharding::Sharding;
use zkdv_hash::tree::TreeKind;
use zkdv_hash::{Digest, chunk, tree};

use super::element::{self, Comparison};
use super::layout::{Layout, Located, TreeLayout};
use super::ledger::Committed;
use crate::record::{CheckBody, Configuration, Coordinate, Opening, Tolerance, Tree, Verdict};
use crate::violation::Code;

type Finding = (Code, String);

/// Judges what a check says against the update that it is of. What is found first of each kind is given; nothing is said
/// of what merely follows from it.
pub(crate) fn judge(
    body: &CheckBody,
    committed: &Committed,
    draw: Draw,
    configuration: &Configuration,
    layout: Option<&Layout>,
) -> Vec<Finding> {
    let shape = judge_shape(body);
    if shape.is_err() {
        return shape.err().into_iter().collect();
    }
    let values = layout.map_or(Ok(()), |layout| {
        judge_values(body, committed, draw, configuration.tolerance, layout)
    });
    [
        judge_tolerance(body, configuration),
        judge_snapshot(body, committed, configuration),
        values,
    ]
    .into_iter()
    .filter_map(Result::err)
    .collect()
}

/// What stands in a check depends on whether it was exact, and on which production values were still there.
fn judge_shape(body: &CheckBody) -> Result<(), Finding> {
    let mut coordinates = [&body.parameter, &body.optimizer].into_iter().flatten();
    let message = if body.exact {
        let has_values = |coordinate: &Coordinate| {
            coordinate.committed.is_some() || coordinate.replayed.is_some() || coordinate.opening.is_some()
        };
        let is_bare = !coordinates.any(has_values) && body.distance.is_none() && body.probes.is_none();
        (!is_bare).then_some("an exact check carries no values, openings, distance or probes, this one does")
    } else {
        let is_whole = |coordinate: &Coordinate| match (&coordinate.committed, &coordinate.replayed) {
            (Some(_), Some(_)) => true,
            (None, None) => coordinate.opening.is_none(),
            _ => false,
        };
        let is_whole = coordinates.all(is_whole) && body.distance.is_some() && body.probes.is_some();
        (!is_whole).then_some(
            "a check that is not exact carries distance and probes, and at a coordinate both values or nothing; this one does not",
        )
    };
    message.map_or(Ok(()), |message| Err((Code::BodyInvalid, message.to_owned())))
}

fn judge_tolerance(body: &CheckBody, configuration: &Configuration) -> Result<(), Finding> {
    let bits = |tolerance: &Tolerance| [tolerance.absolute.to_bits(), tolerance.relative.to_bits()];
    if bits(&body.tolerance) == bits(&configuration.tolerance) {
        return Ok(());
    }
    let (expected, got) = (configuration.tolerance, body.tolerance);
    Err((
        Code::CheckTolerance,
        format!(
            "the configuration allows absolute {:?} and relative {:?}, the check of update {} applied {:?} and {:?}",
            expected.absolute, expected.relative, body.update, got.absolute, got.relative
        ),
    ))
}

fn judge_snapshot(body: &CheckBody, committed: &Committed, configuration: &Configuration) -> Result<(), Finding> {
    let (update, snapshot, interval) = (body.update, body.snapshot, configuration.replay_snapshot_interval);
    let earliest = committed
        .earliest_snapshot
        .max(update.saturating_add(1).saturating_sub(interval));
    if (earliest..=update).contains(&snapshot) {
        return Ok(());
    }
    Err((
        Code::CheckSnapshot,
        format!(
            "update {update} can be replayed from snapshots {earliest} to {update}, the check started from {snapshot}"
        ),
    ))
}

/// Judges coordinates, then openings, then the verdict: each makes sense only where the one before is right.
fn judge_values(
    body: &CheckBody,
    committed: &Committed,
    draw: Draw,
    tolerance: Tolerance,
    layout: &Layout,
) -> Result<(), Finding> {
    judge_coordinates(body, draw)?;
    if body.exact {
        return match body.verdict {
            Verdict::Passed => Ok(()),
            other => Err((
                Code::CheckTolerance,
                format!("an exact check passes, this one is recorded as {other}"),
            )),
        };
    }
    let mut within = body.probes == Some(true);
    let mut gone = false;
    let mut largest = 0.0_f64;
    for (coordinate, tree, root) in [
        (&body.parameter, Tree::Parameters, committed.parameters),
        (&body.optimizer, Tree::Optimizer, committed.optimizer),
    ] {
        let Some(coordinate) = coordinate else { continue };
        match judge_coordinate(coordinate, tree, root, layout.tree(tree), tolerance)? {
            Some(comparison) => {
                within &= comparison.within;
                largest = largest.max(comparison.distance);
            }
            None => gone = true,
        }
    }
    let expected = match (within, gone) {
        (false, _) => Verdict::Failed,
        (true, true) => Verdict::Unresolved,
        (true, false) => Verdict::Passed,
    };
    judge_verdict(body, expected, largest)
}

fn judge_coordinates(body: &CheckBody, draw: Draw) -> Result<(), Finding> {
    for (name, drawn, given) in [
        ("parameter", draw.parameter, body.parameter.as_ref()),
        ("optimizer", draw.optimizer, body.optimizer.as_ref()),
    ] {
        let given = given.map(|coordinate| coordinate.index);
        if drawn != given {
            let show = |index: Option<u64>| index.map_or_else(|| "none".to_owned(), |index| index.to_string());
            return Err((
                Code::CheckCoordinates,
                format!(
                    "the {name} coordinate drawn for update {} is {}, the check names {}",
                    body.update,
                    show(drawn),
                    show(given)
                ),
            ));
        }
    }
    Ok(())
}

fn judge_coordinate(
    coordinate: &Coordinate,
    tree: Tree,
    root: Option<Digest>,
    layout: &TreeLayout,
    tolerance: Tolerance,
) -> Result<Option<Comparison>, Finding> {
    let invalid = |why: &str| {
        Err((
            Code::CheckOpening,
            format!("{tree} coordinate {}: {why}", coordinate.index),
        ))
    };
    let (Some(committed), Some(replayed)) = (&coordinate.committed, &coordinate.replayed) else {
        return Ok(None);
    };
    let Some(located) = layout.locate(coordinate.index) else {
        return invalid("there is no such element");
    };
    match (root, &coordinate.opening) {
        (Some(root), Some(opening)) => {
            if let Err(why) = judge_opening(opening, tree, &root, layout, &located, committed) {
                return invalid(why);
            }
        }
        (Some(_), None) => return invalid("the root is committed, and the opening of the element is missing"),
        (None, Some(_)) => return invalid("there is an opening, and no committed root that it could lead to"),
        (None, None) => {}
    }
    let dtype = located.leaf.dtype;
    element::compare(dtype, committed, replayed, tolerance)
        .map(Some)
        .ok_or(())
        .or_else(|()| {
            let (size, committed, replayed) = (dtype.size_bytes(), committed.len(), replayed.len());
            invalid(&format!(
                "an element of dtype {dtype} has {size} bytes, {committed} and {replayed} are given"
            ))
        })
}

fn judge_opening(
    opening: &Opening,
    tree: Tree,
    root: &Digest,
    layout: &TreeLayout,
    located: &Located<'_>,
    committed: &[u8],
) -> Result<(), &'static str> {
    let kind = match tree {
        Tree::Parameters => TreeKind::Parameters,
        Tree::Optimizer => TreeKind::Optimizer,
    };
    let leaf = opening.digest.as_bytes();
    if !tree::verify(kind, root, layout.leaf_count(), located.leaf_index, leaf, &opening.path) {
        return Err("the leaf's digest does not lead to the committed root");
    }
    let size = located.leaf.dtype.size_bytes();
    // A leaf whose bytes fit 64 bits has elements and shards whose offsets do.
    let length = located
        .leaf
        .bytes()
        .ok_or("its leaf has more bytes than can be addressed")?;
    let piece = match &located.leaf.sharding {
        None if opening.shards.is_empty() => Piece {
            digest: opening.digest,
            length,
            offset: located.element * size as u64,
        },
        None => return Err("its leaf lies in one piece, and digests of shards are given"),
        Some(sharding) => shard(opening, sharding, located.element, size as u64)?,
    };
    let chunk_bytes = chunk::CHUNK_BYTES as u64;
    if opening.chunk != piece.offset / chunk_bytes {
        return Err("the chunk is not the one that holds the element");
    }
    if !chunk::verify(
        &piece.digest,
        piece.length,
        opening.chunk,
        &opening.bytes,
        &opening.chain,
    ) {
        return Err("the chunk does not lead to the digest of the leaf or shard that holds the element");
    }
    // Sizes of elements divide the chunk's, so that no element lies across two chunks.
    #[allow(clippy::cast_possible_truncation, reason = "below the size of a chunk")]
    let start = (piece.offset % chunk_bytes) as usize;
    match opening.bytes.get(start..).and_then(|rest| rest.get(..size)) {
        Some(element) if element == committed => Ok(()),
        _ => Err("the chunk holds another element than the one given as committed"),
    }
}

/// What a chunk is opened in: a leaf, or one shard of it.
struct Piece {
    digest: Digest,
    /// Bytes of the whole piece.
    length: u64,
    /// Where in it the element starts.
    offset: u64,
}

/// The shard that holds an element, shown to be one of the leaf's.
fn shard(opening: &Opening, sharding: &Sharding, element: u64, size: u64) -> Result<Piece, &'static str> {
    // As many digests as the leaf has shards, so that what is hashed here stands in the record.
    if sharding.digest(&opening.shards) != Ok(opening.digest) {
        return Err("the digests of the shards do not give the leaf's digest");
    }
    let absent = "its leaf has no such element";
    let place = sharding.locate(element).ok_or(absent)?;
    let elements = sharding.elements(place.shard).ok_or(absent)?;
    let index = usize::try_from(place.shard).map_err(|_| absent)?;
    Ok(Piece {
        digest: *opening.shards.get(index).ok_or(absent)?,
        length: elements * size,
        offset: place.element * size,
    })
}

fn judge_verdict(body: &CheckBody, expected: Verdict, largest: f64) -> Result<(), Finding> {
    if body.verdict != expected {
        return Err((
            Code::CheckTolerance,
            format!(
                "values and probes of update {} give {expected}, the check is recorded as {}",
                body.update, body.verdict
            ),
        ));
    }
    match body.distance {
        Some(distance) if distance >= largest => Ok(()),
        distance => Err((
            Code::CheckTolerance,
            format!(
                "the values of update {} differ by {largest:?}, the check gives {:?} as the largest distance",
                body.update,
                distance.unwrap_or(f64::NAN)
            ),
        )),
    }
}
