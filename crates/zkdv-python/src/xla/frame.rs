//! A call frame of XLA as safe values: buffers with checked lengths, attributes found by name and checked by type.

use std::ffi::{CString, c_int, c_void};
use std::marker::PhantomData;
use std::{ptr, slice};

use super::abi;
use super::element::ElementType;

/// Longest extension chain that is followed; a real one has one or two members.
const EXTENSIONS_MAX: usize = 64;

/// One call of a handler. XLA owns everything that it shows, for as long as the call lasts.
pub(super) struct Frame<'call> {
    raw: &'call abi::CallFrame,
}

/// An operand: its type, shape and bytes.
pub(super) struct Operand<'call> {
    pub(super) element: ElementType,
    pub(super) shape: Vec<u64>,
    pub(super) bytes: &'call [u8],
}

/// A result: its type, shape and the memory to fill.
pub(super) struct ResultBuffer<'call> {
    pub(super) element: ElementType,
    pub(super) shape: Vec<u64>,
    data: *mut c_void,
    elements: usize,
    _memory: PhantomData<&'call mut [u8]>,
}

impl<'call> Frame<'call> {
    /// # Safety
    ///
    /// `raw` must be null or the call frame that XLA hands to a handler, and must not outlive that call.
    pub(super) unsafe fn new(raw: *const abi::CallFrame) -> Option<Self> {
        // SAFETY: the caller's promise; XLA aligns its frames.
        let raw = unsafe { raw.as_ref() }?;
        (raw.struct_size >= std::mem::offset_of!(abi::CallFrame, future)).then_some(Self { raw })
    }

    /// Answers XLA's question for the handler's API version, if this call is that question.
    pub(super) fn answer_metadata(&self) -> bool {
        let mut extension = self.raw.extension_start;
        for _ in 0..EXTENSIONS_MAX {
            // SAFETY: the chain holds null or extensions that live as long as the frame.
            let Some(current) = (unsafe { extension.as_ref() }) else {
                return false;
            };
            if current.kind == abi::EXTENSION_METADATA {
                // SAFETY: an extension of this kind is the head of a metadata extension, whose metadata is ours to fill.
                let metadata = unsafe { (*extension.cast::<abi::MetadataExtension>()).metadata.as_mut() };
                if let Some(metadata) = metadata {
                    // SAFETY: null or the table of functions that lives as long as the frame.
                    let runtime = unsafe { self.raw.api.as_ref() }.map_or(0, |api| api.api_version.minor);
                    metadata.api_version.major = abi::API_MAJOR;
                    metadata.api_version.minor = runtime.clamp(0, abi::API_MINOR);
                    metadata.traits = 0;
                }
                return true;
            }
            extension = current.next;
        }
        false
    }

    pub(super) fn is_execution(&self) -> bool {
        self.raw.stage == abi::STAGE_EXECUTE
    }

    /// An error for XLA to raise; null, which means success, only where XLA offers no way to make one.
    pub(super) fn error(&self, code: c_int, message: &str) -> *mut abi::Error {
        // A NUL would cut the message; no message of ours holds one, but names of attributes come from outside.
        let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
        let mut arguments = abi::ErrorCreate {
            struct_size: std::mem::offset_of!(abi::ErrorCreate, code) + size_of::<c_int>(),
            extension_start: ptr::null_mut(),
            message: message.as_ptr(),
            code,
        };
        // SAFETY: null or the table of functions that lives as long as the frame.
        match unsafe { self.raw.api.as_ref() }.and_then(|api| api.error_create) {
            // SAFETY: the arguments are laid out as the header says, and XLA copies the message.
            Some(create) => unsafe { create(&raw mut arguments) },
            None => ptr::null_mut(),
        }
    }

    pub(super) fn operands(&self) -> Result<Vec<Operand<'call>>, String> {
        let mut operands = Vec::new();
        for (index, buffer) in Self::buffers(&self.raw.arguments, abi::ARGUMENT_BUFFER, "operand")?
            .into_iter()
            .enumerate()
        {
            let Described {
                element,
                shape,
                elements,
                bytes,
            } = describe(buffer, || format!("operand {index}"))?;
            operands.push(Operand {
                element,
                shape,
                bytes: if elements == 0 {
                    &[]
                } else {
                    // SAFETY: XLA promises as many readable bytes as shape and type call for, and does not write to an
                    // operand that is not aliased to a result while the call lasts; `describe` refused null.
                    unsafe { slice::from_raw_parts(buffer.data.cast::<u8>(), bytes) }
                },
            });
        }
        Ok(operands)
    }

    pub(super) fn results(&self) -> Result<Vec<ResultBuffer<'call>>, String> {
        let mut results = Vec::new();
        for (index, buffer) in Self::buffers(&self.raw.results, abi::RESULT_BUFFER, "result")?
            .into_iter()
            .enumerate()
        {
            let Described {
                element,
                shape,
                elements,
                ..
            } = describe(buffer, || format!("result {index}"))?;
            results.push(ResultBuffer {
                element,
                shape,
                data: buffer.data,
                elements,
                _memory: PhantomData,
            });
        }
        Ok(results)
    }

    /// Refuses results that share memory with operands: a handler reads and writes at the same time.
    pub(super) fn check_disjoint(operands: &[Operand<'_>], results: &[ResultBuffer<'_>]) -> Result<(), String> {
        for (written, result) in results.iter().enumerate().filter(|(_, result)| result.elements > 0) {
            let start = result.data.addr();
            let end = start + result.elements * result.element.size_bytes().unwrap_or_default();
            let shared = operands.iter().position(|operand| {
                let range = operand.bytes.as_ptr_range();
                range.start.addr() < end && start < range.end.addr()
            });
            if let Some(read) = shared {
                return Err(format!(
                    "result {written} shares memory with operand {read}; the call takes no aliases"
                ));
            }
        }
        Ok(())
    }

    /// The attributes of the call, which must be exactly `names`, each a scalar; in the order of `names`.
    pub(super) fn scalars<const N: usize>(&self, names: [&str; N]) -> Result<[ScalarAttribute; N], String> {
        let raw = &self.raw.attributes;
        let count = count(raw.size, "attributes")?;
        let mut found = [ScalarAttribute { element: None, bits: 0 }; N];
        let mut seen = [false; N];
        if count > 0 && (raw.types.is_null() || raw.names.is_null() || raw.values.is_null()) {
            return Err("the list of attributes is null".to_owned());
        }
        for index in 0..count {
            // SAFETY: XLA gives arrays of `size` entries each; names are spans of bytes that live as long as the frame.
            let (kind, name, value) = unsafe {
                (
                    *raw.types.add(index),
                    (*raw.names.add(index)).as_ref(),
                    *raw.values.add(index),
                )
            };
            let name = match name {
                // SAFETY: a span holds `length` readable bytes.
                Some(span) if span.length > 0 && !span.pointer.is_null() => unsafe {
                    String::from_utf8_lossy(slice::from_raw_parts(span.pointer, span.length))
                },
                _ => "".into(),
            };
            let Some(position) = names.iter().position(|&wanted| wanted == name) else {
                return Err(format!("unknown attribute {name:?}; it takes {}", names.join(", ")));
            };
            if kind != abi::ATTRIBUTE_SCALAR || value.is_null() {
                return Err(format!("attribute {name} must be a scalar"));
            }
            // SAFETY: a scalar attribute is an `XLA_FFI_Scalar`.
            let scalar = unsafe { &*value.cast::<abi::Scalar>() };
            let element = ElementType::from_xla(scalar.dtype);
            let bits = match element.and_then(ElementType::size_bytes) {
                // SAFETY: the value has the size of its type; unaligned reads are allowed for.
                Some(8) if !scalar.value.is_null() => unsafe { scalar.value.cast::<u64>().read_unaligned() },
                _ => 0,
            };
            found[position] = ScalarAttribute { element, bits };
            seen[position] = true;
        }
        match seen.iter().position(|&seen| !seen) {
            Some(missing) => Err(format!(
                "attribute {} is missing; it takes {}",
                names[missing],
                names.join(", ")
            )),
            None => Ok(found),
        }
    }

    fn buffers(values: &'call abi::Values, kind: c_int, noun: &str) -> Result<Vec<&'call abi::Buffer>, String> {
        let count = count(values.size, noun)?;
        if count > 0 && (values.types.is_null() || values.values.is_null()) {
            return Err(format!("the list of {noun}s is null"));
        }
        (0..count)
            .map(|index| {
                // SAFETY: XLA gives arrays of `size` entries; an entry of the buffer kind is an `XLA_FFI_Buffer`.
                let buffer = unsafe {
                    if *values.types.add(index) == kind {
                        (*values.values.add(index)).cast::<abi::Buffer>().as_ref()
                    } else {
                        None
                    }
                };
                buffer.ok_or_else(|| format!("{noun} {index} is not an array"))
            })
            .collect()
    }
}

/// Number types of results: every bit pattern is a value.
pub(super) trait Number: Copy {
    const ELEMENT: ElementType;
}

impl Number for u32 {
    const ELEMENT: ElementType = ElementType::U32;
}

impl Number for f32 {
    const ELEMENT: ElementType = ElementType::F32;
}

impl Number for f64 {
    const ELEMENT: ElementType = ElementType::F64;
}

/// A scalar attribute as XLA gives it.
#[derive(Clone, Copy)]
pub(super) struct ScalarAttribute {
    element: Option<ElementType>,
    bits: u64,
}

impl ScalarAttribute {
    pub(super) fn int64(self, name: &str) -> Result<i64, String> {
        self.typed(name, ElementType::S64, "int64").map(u64::cast_signed)
    }

    pub(super) fn float64(self, name: &str) -> Result<f64, String> {
        self.typed(name, ElementType::F64, "float64").map(f64::from_bits)
    }

    fn typed(self, name: &str, wanted: ElementType, spelled: &str) -> Result<u64, String> {
        match self.element {
            Some(element) if element == wanted => Ok(self.bits),
            Some(other) => Err(format!(
                "attribute {name} must be {spelled}, not {other}; pass numpy.{spelled}(…)"
            )),
            None => Err(format!("attribute {name} must be {spelled}; pass numpy.{spelled}(…)")),
        }
    }
}

impl<'call> ResultBuffer<'call> {
    /// The memory of a vector.
    pub(super) fn into_vector<T: Number>(self, name: &str) -> Result<&'call mut [T], String> {
        if self.shape.len() != 1 {
            return Err(format!(
                "result {name} must be a vector, not an array of shape {:?}",
                self.shape
            ));
        }
        self.into_slice(name)
    }

    /// The memory, whose element type must be that of `T`.
    pub(super) fn into_slice<T: Number>(self, name: &str) -> Result<&'call mut [T], String> {
        if self.element != T::ELEMENT {
            return Err(format!("result {name} must be {}, not {}", T::ELEMENT, self.element));
        }
        if self.elements == 0 {
            return Ok(&mut []);
        }
        let data = self.data.cast::<T>();
        if !data.is_aligned() {
            return Err(format!("result {name} is not aligned for {}", T::ELEMENT));
        }
        // SAFETY: XLA promises that many writable elements, which nothing else reads or writes during the call; results
        // do not overlap one another, each is taken once (`self` is consumed), and null was refused.
        Ok(unsafe { slice::from_raw_parts_mut(data, self.elements) })
    }
}

struct Described {
    element: ElementType,
    shape: Vec<u64>,
    elements: usize,
    bytes: usize,
}

fn describe(buffer: &abi::Buffer, name: impl Fn() -> String) -> Result<Described, String> {
    let element = ElementType::from_xla(buffer.dtype).ok_or_else(|| {
        format!(
            "{} has element type {} of XLA, which is not known",
            name(),
            buffer.dtype
        )
    })?;
    let rank = count(buffer.rank, "dimensions")?;
    let dimensions = if rank == 0 {
        &[]
    } else if buffer.dimensions.is_null() {
        return Err(format!("{} has no dimensions", name()));
    } else {
        // SAFETY: XLA gives `rank` dimensions.
        unsafe { slice::from_raw_parts(buffer.dimensions, rank) }
    };
    let shape = dimensions
        .iter()
        .map(|&dimension| u64::try_from(dimension))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| format!("{} has a negative dimension: {dimensions:?}", name()))?;
    let size = element.size_bytes().ok_or_else(|| {
        format!(
            "{} is {element}, a type that packs several elements into a byte; convert it to int8 or a wider type",
            name()
        )
    })?;
    if shape.contains(&0) {
        return Ok(Described {
            element,
            shape,
            elements: 0,
            bytes: 0,
        });
    }
    let (elements, bytes) = shape
        .iter()
        .try_fold(1_usize, |product, &dimension| {
            product.checked_mul(usize::try_from(dimension).ok()?)
        })
        .and_then(|elements| Some((elements, elements.checked_mul(size)?)))
        .filter(|&(_, bytes)| isize::try_from(bytes).is_ok())
        .ok_or_else(|| format!("{} is too large: shape {shape:?}", name()))?;
    if elements > 0 && buffer.data.is_null() {
        return Err(format!("{} has no memory", name()));
    }
    Ok(Described {
        element,
        shape,
        elements,
        bytes,
    })
}

fn count(size: i64, noun: &str) -> Result<usize, String> {
    usize::try_from(size).map_err(|_| format!("the number of {noun} is negative: {size}"))
}
