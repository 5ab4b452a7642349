//! Everything that can be wrong with what this crate is asked to do.

use crate::Dtype;

/// Why something was not hashed, opened or drawn.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HashError {
    /// A digest of another length.
    #[error("a digest has 32 bytes, these are {got}")]
    DigestLength {
        /// Bytes given.
        got: usize,
    },
    /// Text that is not the lower-case hexadecimal form of a digest.
    #[error("a digest is written as 64 hexadecimal digits in lower case; this text of {length} bytes is not")]
    DigestText {
        /// Length of the text in bytes.
        length: usize,
    },
    /// A dtype that no commitment is defined for.
    #[error("dtype `{name}` cannot be committed to: {reason}")]
    Dtype {
        /// The name as given.
        name: String,
        /// What to do about it.
        reason: &'static str,
    },
    /// A tree kind that the protocol does not have.
    #[error("there is no tree kind `{name}`; kinds are {}", crate::tree::TreeKind::names())]
    TreeKind {
        /// The name as given.
        name: String,
    },
    /// A shape whose number of bytes does not fit the machine.
    #[error("an array of shape {shape:?} and dtype {dtype} has more bytes than can be addressed")]
    ShapeOverflow {
        /// The shape as given.
        shape: Vec<u64>,
        /// The element type.
        dtype: Dtype,
    },
    /// Bytes that do not fill the shape exactly.
    #[error("an array of shape {shape:?} and dtype {dtype} has {expected} bytes, {got} were given")]
    ByteCount {
        /// The shape as given.
        shape: Vec<u64>,
        /// The element type.
        dtype: Dtype,
        /// Bytes that the shape calls for.
        expected: u64,
        /// Bytes given.
        got: usize,
    },
    /// A probe ratio outside (0, 1].
    #[error("the probe ratio must be above 0 and at most 1, it is {ratio}")]
    ProbeRatio {
        /// The ratio as given.
        ratio: f64,
    },
    /// A last dimension that a binary64 number does not hold exactly.
    #[error("a probed last dimension is at most 2^53 real numbers, this one has {dimension}")]
    ProbeDimension {
        /// The dimension as given.
        dimension: u64,
    },
    /// A tree number that no probe stream is defined for.
    #[error("probes belong to tree 0 (parameters) or 1 (optimizer), not {number}")]
    ProbeTree {
        /// The number as given.
        number: u8,
    },
    /// Sign words of another number than the leaves call for.
    #[error("the leaves call for {expected} sign words, {got} were given")]
    SignWords {
        /// Words that the probed leaves need together.
        expected: usize,
        /// Words given.
        got: usize,
    },
    /// A result that does not fit the place it was to be written to.
    #[error("{what} takes {expected} elements, there is room for {got}")]
    OutputLength {
        /// The result.
        what: &'static str,
        /// Elements it has.
        expected: usize,
        /// Elements there is room for.
        got: usize,
    },
    /// A batch whose words do not fill its shape.
    #[error("a batch of {rows} rows of {width} words does not have {words} words")]
    BatchShape {
        /// Rows as given.
        rows: usize,
        /// Words of a row as given.
        width: usize,
        /// Words given.
        words: usize,
    },
    /// A batch of too many rows that hold nothing.
    #[error("a batch of rows without words has at most {limit} rows, this one has {rows}")]
    EmptyRows {
        /// Rows as given.
        rows: usize,
        /// Rows that are accepted.
        limit: usize,
    },
    /// A rolling window of no words.
    #[error("the rolling window must hold at least one word")]
    EmptyWindow,
    /// A window of another length than the batch was committed with.
    #[error("windows of this batch have {expected} words, this one has {got}")]
    WindowLength {
        /// Words of the rolling window.
        expected: usize,
        /// Words given.
        got: usize,
    },
    /// A window that was to be shown and is not in the batch.
    #[error("the window is in no row of the batch; its absence can be opened instead")]
    WindowAbsent,
    /// A window that was to be shown absent although its hash is in the list.
    #[error("a window with this hash is in the batch, so its absence cannot be opened")]
    WindowPresent,
    /// Words whose absence cannot be shown, since no window fits into them.
    #[error(
        "the absence of {got} words cannot be shown: windows of this batch have {expected} words, and only whole windows \
         are listed"
    )]
    AbsenceTooShort {
        /// Words of the rolling window.
        expected: usize,
        /// Words given.
        got: usize,
    },
    /// Words whose absence cannot be shown, since each of their windows stands somewhere.
    #[error(
        "each window of these words stands somewhere in the batch, so the list of windows cannot show that they are absent"
    )]
    EveryWindowPresent,
    /// A number that is no base of the rolling hash.
    #[error("a rolling base is at least 2^32 and below 2^61 - 1, {value} is not")]
    RollingBase {
        /// The number as given.
        value: u64,
    },
    /// An index beyond the end.
    #[error("there is no {what} {index}, there are {count}")]
    Index {
        /// What is counted.
        what: &'static str,
        /// The index as given.
        index: u64,
        /// How many there are.
        count: u64,
    },
    /// Extents that do not cut a leaf into shards.
    #[error("a leaf of shape {shape:?} cannot lie in shards of {extents:?}: {reason}")]
    Sharding {
        /// The shape as given.
        shape: Vec<u64>,
        /// The extents as given.
        extents: Vec<u64>,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// Another number of shard digests than the leaf has shards.
    #[error("the leaf has {expected} shards, {got} digests were given")]
    ShardCount {
        /// Shards of the leaf.
        expected: u64,
        /// Digests given.
        got: usize,
    },
    /// Bytes that are not all elements of a sharded leaf.
    #[error("{elements} elements of {element_bytes} bytes are not the {got} bytes that were given")]
    LeafBytes {
        /// Elements of the leaf.
        elements: u64,
        /// Bytes of an element.
        element_bytes: usize,
        /// Bytes given.
        got: usize,
    },
    /// A probability outside [0, 1].
    #[error("the update check probability must be between 0 and 1, it is {probability}")]
    Probability {
        /// The probability as given.
        probability: f64,
    },
    /// Checking every zeroth update.
    #[error("checks every 0 updates are not defined; 1 checks all of them")]
    EveryZero,
}
