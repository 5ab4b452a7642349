//! Whether a check says what it may say.

use zkdv_hash::challenge::Draw;
use zkdv_hash::sharding::Sharding;
use zkdv_hash::tree::TreeKind;
use zkdv_hash::{Digest, Dtype, chunk, tree};

use super::attested::{Agreement, compare_delta, compare_value};
use super::element::{self, Comparison};
use super::layout::{Layout, Located, TreeLayout};
use super::ledger::Committed;
use super::order::Attestation;
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
    let shape = judge_attested(body, committed.attestation).and_then(|()| judge_shape(body));
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

/// Whether values of an attest program are there exactly where one is in force.
fn judge_attested(body: &CheckBody, attestation: Attestation) -> Result<(), Finding> {
    let mut coordinates = [&body.parameter, &body.optimizer].into_iter().flatten();
    let update = body.update;
    match attestation {
        Attestation::InForce { .. } if coordinates.any(|coordinate| coordinate.attested.is_none()) => Err((
            Code::AttestedMissing,
            format!("an attest program is in force at update {update}, and its values are missing in the check"),
        )),
        Attestation::None if coordinates.any(|coordinate| coordinate.attested.is_some()) => Err((
            Code::AttestedUnexpected,
            format!("no attest program is in force at update {update}, and the check has values of one"),
        )),
        _ => Ok(()),
    }
}

/// What stands in a check depends on whether it was exact, whether it was attested, and on which production values were
/// still there.
fn judge_shape(body: &CheckBody) -> Result<(), Finding> {
    let mut coordinates = [&body.parameter, &body.optimizer].into_iter().flatten();
    let bare = |coordinate: &Coordinate| {
        coordinate.committed.is_none() && coordinate.replayed.is_none() && coordinate.opening.is_none()
    };
    let message = if body.exact {
        let fits = |coordinate: &Coordinate| match coordinate.attested {
            None => bare(coordinate),
            Some(_) => coordinate.committed.is_some() && coordinate.replayed.is_none(),
        };
        let fits = coordinates.all(fits) && body.distance.is_none() && body.probes.is_none();
        (!fits).then_some(
            "an exact check carries no replayed values, distance or probes, and committed values and openings only beside \
             attested ones; this one does not",
        )
    } else {
        let is_whole = |coordinate: &Coordinate| match (&coordinate.committed, &coordinate.replayed) {
            (Some(_), Some(_)) => true,
            _ => bare(coordinate),
        };
        let is_whole = coordinates.all(is_whole) && body.distance.is_some() && body.probes.is_some();
        (!is_whole).then_some(
            "a check that is not exact carries distance and probes, and at a coordinate both values or nothing; this one does not",
        )
    };
    let message = message.or_else(|| (!before_fits(body)).then_some(
        "an element before the update comes with its opening, at an attested parameter, and there always where the check \
         is exact; in this check it does not",
    ));
    message.map_or(Ok(()), |message| Err((Code::BodyInvalid, message.to_owned())))
}

fn before_fits(body: &CheckBody) -> bool {
    let parts = |coordinate: &Coordinate| [coordinate.before.is_some(), coordinate.before_opening.is_some()];
    let parameter = body
        .parameter
        .as_ref()
        .is_none_or(|coordinate| match (parts(coordinate), coordinate.attested) {
            ([true, true], attested) => attested.is_some(),
            ([false, false], attested) => !body.exact || attested.is_none(),
            _ => false,
        });
    parameter
        && body
            .optimizer
            .as_ref()
            .is_none_or(|coordinate| parts(coordinate) == [false; 2])
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
    let mut within = body.exact || body.probes == Some(true);
    let mut gone = false;
    let mut largest = 0.0_f64;
    for (coordinate, tree, root, before) in [
        (
            &body.parameter,
            Tree::Parameters,
            committed.parameters,
            committed.parameters_before,
        ),
        (&body.optimizer, Tree::Optimizer, committed.optimizer, None),
    ] {
        let Some(coordinate) = coordinate else { continue };
        if body.exact && coordinate.attested.is_none() {
            continue;
        }
        let shown = judge_coordinate(coordinate, tree, [before, root], layout.tree(tree), tolerance)?;
        within &= shown.within;
        gone |= shown.gone;
        largest = largest.max(shown.distance);
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

/// What the elements at a coordinate show.
struct Shown {
    /// Whether those that are there are within tolerance.
    within: bool,
    /// Whether one is not there.
    gone: bool,
    /// Between the committed and the replayed one.
    distance: f64,
}

fn judge_coordinate(
    coordinate: &Coordinate,
    tree: Tree,
    [root_before, root]: [Option<Digest>; 2],
    layout: &TreeLayout,
    tolerance: Tolerance,
) -> Result<Shown, Finding> {
    let invalid = |why: &str| {
        (
            Code::CheckOpening,
            format!("{tree} coordinate {}: {why}", coordinate.index),
        )
    };
    let located = layout
        .locate(coordinate.index)
        .ok_or_else(|| invalid("there is no such element"))?;
    let open = |opening: &Opening, root: &Digest, element: &[u8]| {
        judge_opening(opening, tree, root, layout, &located, element).map_err(invalid)
    };
    let dtype = located.leaf.dtype;
    let other_length = || invalid(&format!("an element of dtype {dtype} has {} bytes", dtype.size_bytes()));

    let mut shown = Shown {
        within: true,
        gone: coordinate.committed.is_none(),
        distance: 0.0,
    };
    if let (Some(before), Some(opening), Some(root)) = (&coordinate.before, &coordinate.before_opening, &root_before) {
        open(opening, root, before)?;
    }
    let Some(committed) = &coordinate.committed else {
        return Ok(shown);
    };
    match (&root, &coordinate.opening) {
        (Some(root), Some(opening)) => open(opening, root, committed)?,
        (Some(_), None) => {
            return Err(invalid(
                "the root is committed, and the opening of the element is missing",
            ));
        }
        (None, Some(_)) => {
            return Err(invalid(
                "there is an opening, and no committed root that it could lead to",
            ));
        }
        (None, None) => {}
    }
    if let Some(replayed) = &coordinate.replayed {
        let Comparison { within, distance } =
            element::compare(dtype, committed, replayed, tolerance).ok_or_else(other_length)?;
        (shown.within, shown.distance) = (within, distance);
    }
    match agreement(coordinate, tree, dtype, tolerance) {
        Attested::Compared(agreement) => shown.within &= agreement.ok_or_else(other_length)?.within,
        Attested::Gone => shown.gone = true,
        Attested::Not => {}
    }
    Ok(shown)
}

enum Attested {
    /// None, where an element does not have the length of its dtype.
    Compared(Option<Agreement>),
    /// What the attested value stands for is not given.
    Gone,
    Not,
}

fn agreement(coordinate: &Coordinate, tree: Tree, dtype: Dtype, tolerance: Tolerance) -> Attested {
    let Some(attested) = coordinate.attested else {
        return Attested::Not;
    };
    match (tree, &coordinate.before, &coordinate.committed) {
        (Tree::Parameters, Some(before), Some(after)) => {
            Attested::Compared(compare_delta(dtype, before, after, attested, tolerance))
        }
        (Tree::Optimizer, _, Some(after)) => Attested::Compared(compare_value(dtype, after, attested, tolerance)),
        _ => Attested::Gone,
    }
}

/// Says why a check failed that is recorded as failed, and rightly so.
pub(crate) fn describe_failure(body: &CheckBody, tolerance: Tolerance, layout: Option<&Layout>) -> String {
    let update = body.update;
    for (coordinate, tree) in [(&body.parameter, Tree::Parameters), (&body.optimizer, Tree::Optimizer)] {
        let Some((coordinate, layout)) = coordinate.as_ref().zip(layout) else {
            continue;
        };
        let Some(located) = layout.tree(tree).locate(coordinate.index) else {
            continue;
        };
        let Attested::Compared(Some(found)) = agreement(coordinate, tree, located.leaf.dtype, tolerance) else {
            continue;
        };
        if !found.within {
            let (what, which) = match tree {
                Tree::Parameters => ("a delta of ", "the committed update moved it by"),
                Tree::Optimizer => ("", "the committed update left"),
            };
            return format!(
                "the attest program disagrees with update {update} at element {} of {tree} leaf {}: it gives {what}{:?}, \
                 {which} {:?}, and {:?} may lie between them",
                located.element,
                located.leaf.name,
                coordinate.attested.unwrap_or(f64::NAN),
                found.expected,
                found.allowed,
            );
        }
    }
    format!(
        "the replay of update {update} differs by up to {:?}, {} probes",
        body.distance.unwrap_or(f64::NAN),
        if body.probes == Some(true) {
            "within tolerance in its"
        } else {
            "and beyond tolerance in its"
        }
    )
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
    if body.verdict != expected && body.exact && expected == Verdict::Passed {
        return Err((
            Code::CheckTolerance,
            format!(
                "an exact check passes where no attested value disagrees, this one is recorded as {}",
                body.verdict
            ),
        ));
    }
    if body.verdict != expected {
        return Err((
            Code::CheckTolerance,
            format!(
                "what the check of update {} shows gives {expected}, it is recorded as {}",
                body.update, body.verdict
            ),
        ));
    }
    match body.distance {
        Some(distance) if distance >= largest => Ok(()),
        None if body.exact => Ok(()),
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
