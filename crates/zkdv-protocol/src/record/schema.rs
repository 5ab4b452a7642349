use super::error::BodyError;
use super::fields::{Fields, Parsed, list, name, non_empty, text, text_enum, unsigned};
use crate::cbor::{Item, Value};
use crate::limits::{MAX_DIMENSIONS, MAX_LEAVES};
use std::cell::Cell;
use zkdv_hash::Dtype;
use zkdv_hash::sharding::Sharding;

/// The layout of state and batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaBody {
    /// The leaves of the parameters, in the order of their tree.
    pub parameters: Vec<Leaf>,
    /// The leaves of the optimizer state, in the order of their tree.
    pub optimizer: Vec<Leaf>,
    /// The layout of a batch.
    pub batch: BatchLayout,
    /// The names of the scalars that updates may carry.
    pub scalars: Vec<String>,
}

/// One array of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Its name in the state dict.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its dimensions. Their product fits 64 bits.
    pub shape: Vec<u64>,
    /// Other names of the same leaf; empty where there are none.
    pub aliases: Vec<String>,
    /// The extents of its shards, where it is spread over devices: see [`Sharding`].
    pub sharding: Option<Vec<u64>>,
}

/// The layout of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchLayout {
    /// Rows of the batch matrix.
    pub rows: u64,
    /// Words in each row.
    pub width: u64,
    /// The arrays that it is made of.
    pub leaves: Vec<BatchLeaf>,
}

/// One array of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchLeaf {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub dtype: String,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// Where in the matrix it stands.
    pub place: Place,
}

text_enum! {
    /// Where in the batch matrix an array stands.
    Place {
        /// Its rows are parts of the matrix's rows.
        Joined = "joined",
        /// In rows of its own.
        Extra = "extra",
    }
}

impl SchemaBody {
    pub(super) fn from_item(item: Item<'_>) -> Parsed<Self> {
        let aliases = Cell::new(MAX_LEAVES);
        let mut fields = Fields::of(item)?;
        let body = Self {
            parameters: fields.required("parameters", list(MAX_LEAVES, |item| Leaf::from_item(item, &aliases)))?,
            optimizer: fields.required("optimizer", list(MAX_LEAVES, |item| Leaf::from_item(item, &aliases)))?,
            batch: fields.required("batch", BatchLayout::from_item)?,
            scalars: fields.required("scalars", list(MAX_LEAVES, name))?,
        };
        fields.finish(&["parameters", "optimizer", "batch", "scalars"])?;
        for (key, leaves) in [("parameters", &body.parameters), ("optimizer", &body.optimizer)] {
            let elements = leaves
                .iter()
                .try_fold(0_u64, |sum, leaf| sum.checked_add(leaf.elements()));
            if elements.is_none() {
                return Err(BodyError::new("fewer than 2^64 elements in all", "more").within(key));
            }
        }
        Ok(body)
    }

    pub(super) fn to_value(&self) -> Value {
        let leaves = |leaves: &[Leaf]| Value::Array(leaves.iter().map(Leaf::to_value).collect());
        Value::map([
            ("parameters", leaves(&self.parameters)),
            ("optimizer", leaves(&self.optimizer)),
            ("batch", self.batch.to_value()),
            ("scalars", names(&self.scalars)),
        ])
    }

    /// How many elements all parameter leaves have.
    pub fn parameter_elements(&self) -> u64 {
        self.parameters.iter().map(Leaf::elements).sum()
    }

    /// How many elements all optimizer leaves have.
    pub fn optimizer_elements(&self) -> u64 {
        self.optimizer.iter().map(Leaf::elements).sum()
    }
}

impl Leaf {
    /// `aliases` is how many more the schema may have: the shortest takes twenty times its bytes when owned.
    fn from_item(item: Item<'_>, aliases: &Cell<usize>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let leaf = Self {
            name: fields.required("name", name)?,
            dtype: fields.required("dtype", dtype)?,
            shape: fields.required("shape", shape)?,
            aliases: fields
                .optional("aliases", non_empty(list(aliases.get(), name)))?
                .unwrap_or_default(),
            sharding: fields.optional("sharding", list(MAX_DIMENSIONS, unsigned))?,
        };
        fields.finish(&["name", "dtype", "shape", "aliases", "sharding"])?;
        aliases.set(aliases.get() - leaf.aliases.len());
        if let Some(extents) = &leaf.sharding {
            Sharding::new(&leaf.shape, extents)
                .map_err(|error| BodyError::new("extents of shards", error.to_string()).within("sharding"))?;
        }
        Ok(leaf)
    }

    fn to_value(&self) -> Value {
        Value::map([
            ("name", self.name.as_str().into()),
            ("dtype", self.dtype.name().into()),
            ("shape", sizes(&self.shape)),
        ])
        .with("aliases", (!self.aliases.is_empty()).then(|| names(&self.aliases)))
        .with("sharding", self.sharding.as_deref().map(sizes))
    }

    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

impl BatchLayout {
    fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let layout = Self {
            rows: fields.required("rows", unsigned)?,
            width: fields.required("width", unsigned)?,
            leaves: fields.required("leaves", list(MAX_LEAVES, BatchLeaf::from_item))?,
        };
        fields.finish(&["rows", "width", "leaves"])?;
        Ok(layout)
    }

    fn to_value(&self) -> Value {
        Value::map([
            ("rows", self.rows.into()),
            ("width", self.width.into()),
            (
                "leaves",
                Value::Array(self.leaves.iter().map(BatchLeaf::to_value).collect()),
            ),
        ])
    }
}

impl BatchLeaf {
    fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let leaf = Self {
            name: fields.required("name", name)?,
            dtype: fields.required("dtype", name)?,
            shape: fields.required("shape", shape)?,
            place: fields.required("place", Place::from_item)?,
        };
        fields.finish(&["name", "dtype", "shape", "place"])?;
        Ok(leaf)
    }

    fn to_value(&self) -> Value {
        Value::map([
            ("name", self.name.as_str().into()),
            ("dtype", self.dtype.as_str().into()),
            ("shape", sizes(&self.shape)),
            ("place", self.place.into()),
        ])
    }
}

fn dtype(item: Item<'_>) -> Parsed<Dtype> {
    let name = text(item)?;
    name.parse()
        .map_err(|_| BodyError::item("a dtype of the format", &item))
}

/// Dimensions whose product fits 64 bits.
fn shape(item: Item<'_>) -> Parsed<Vec<u64>> {
    let shape = list(MAX_DIMENSIONS, unsigned)(item)?;
    // Zeros are left out, so that no order of dimensions overflows on the way to a product of 0.
    let product = shape
        .iter()
        .filter(|&&size| size > 0)
        .try_fold(1_u64, |product, &size| product.checked_mul(size));
    match product {
        Some(_) => Ok(shape),
        None => Err(BodyError::new(
            "dimensions with a product below 2^64",
            format!("{shape:?}"),
        )),
    }
}

fn sizes(shape: &[u64]) -> Value {
    Value::Array(shape.iter().map(|&size| size.into()).collect())
}

pub(super) fn names(names: &[String]) -> Value {
    Value::Array(names.iter().map(|name| name.as_str().into()).collect())
}
