//! Reading a GGUF header from bytes that nobody vouches for.

use std::collections::HashSet;

use kernels::Format;

use super::{Array, GgufError, Metadata, TensorInfo, Value};

/// Arrays of arrays are legal and unused; deeper than this is an attack on the stack.
const MAX_NESTING: u32 = 4;
/// Dimensions that the format allows.
const MAX_DIMS: u32 = 4;
/// Alignment of tensors when the file does not say.
const DEFAULT_ALIGNMENT: u32 = 32;
/// Any alignment that makes sense for mapped memory; more would only serve to waste address space.
const ALIGNMENTS: std::ops::RangeInclusive<u32> = 8..=1 << 20;
/// Fewest bytes of a metadata entry: key length, value type, one byte of value.
const MIN_ENTRY: u64 = 8 + 4 + 1;
/// Fewest bytes of a tensor entry: name length, dimension count, one dimension, type, offset.
const MIN_TENSOR: u64 = 8 + 4 + 8 + 4 + 8;

/// Reads and checks everything up to the tensor data.
pub(super) fn header(bytes: &[u8], file: &str) -> Result<(Metadata, Vec<TensorInfo>), GgufError> {
    let mut r = Reader { bytes, at: 0, file };
    magic(&mut r)?;
    let start = r.at;
    let tensor_count = r.u64("tensor count")?;
    let entry_count = r.u64("metadata count")?;
    r.check_count("metadata count", start + 8, entry_count, MIN_ENTRY)?;
    r.check_count("tensor count", start, tensor_count, MIN_TENSOR)?;

    let mut metadata = Metadata::new(file);
    for i in 0..entry_count {
        entry(&mut r, i, &mut metadata)?;
    }
    let alignment = alignment(&r, &metadata)?;

    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for i in 0..tensor_count {
        let at = r.at;
        let tensor = tensor(&mut r, i, alignment)?;
        if !names.insert(tensor.name.clone()) {
            return Err(r.invalid(format!("tensor {}", tensor.name), at, "the name is there twice"));
        }
        tensors.push(tensor);
    }
    place(&r, &mut tensors, alignment)?;
    Ok((metadata, tensors))
}

fn magic(r: &mut Reader) -> Result<(), GgufError> {
    if crate::weights::is_git_lfs_pointer(r.bytes) {
        return Err(r.invalid("magic", 0, "a Git LFS pointer, not the model itself; run `git lfs pull` there"));
    }
    if r.take(4, "magic")? != b"GGUF" {
        return Err(r.invalid("magic", 0, "not a GGUF file (it does not start with the letters GGUF)"));
    }
    let version = r.u32("version")?;
    match version {
        2 | 3 => Ok(()),
        v if (1..=3).contains(&v.swap_bytes()) => {
            Err(r.invalid("version", 4, "a big-endian GGUF file; only little-endian files are supported, convert it"))
        }
        v => Err(r.invalid("version", 4, format!("GGUF version {v} is not supported, only 2 and 3; convert the file"))),
    }
}

fn entry(r: &mut Reader, i: u64, metadata: &mut Metadata) -> Result<(), GgufError> {
    let at = r.at;
    let key = r.string(&format!("key of metadata entry {i}"))?;
    let field = format!("metadata key {key}");
    let kind = r.u32(&field)?;
    let value = value(r, kind, &field)?;
    if metadata.insert(key, value) { Ok(()) } else { Err(r.invalid(field, at, "the key is there twice")) }
}

fn value(r: &mut Reader, kind: u32, field: &str) -> Result<Value, GgufError> {
    Ok(match kind {
        0 => Value::U8(r.number(field, u8::from_le_bytes)?),
        1 => Value::I8(r.number(field, i8::from_le_bytes)?),
        2 => Value::U16(r.number(field, u16::from_le_bytes)?),
        3 => Value::I16(r.number(field, i16::from_le_bytes)?),
        4 => Value::U32(r.number(field, u32::from_le_bytes)?),
        5 => Value::I32(r.number(field, i32::from_le_bytes)?),
        6 => Value::F32(r.number(field, f32::from_le_bytes)?),
        7 => Value::Bool(r.bools(1, field)?[0]),
        8 => Value::Str(String::from_utf8_lossy(r.string_bytes(field)?).into_owned()),
        9 => Value::Array(array(r, field, 0)?),
        10 => Value::U64(r.number(field, u64::from_le_bytes)?),
        11 => Value::I64(r.number(field, i64::from_le_bytes)?),
        12 => Value::F64(r.number(field, f64::from_le_bytes)?),
        _ => return Err(r.invalid(field, r.at - 4, format!("unknown value type {kind}"))),
    })
}

fn array(r: &mut Reader, field: &str, depth: u32) -> Result<Array, GgufError> {
    let at = r.at;
    if depth == MAX_NESTING {
        return Err(r.invalid(field, at, format!("arrays nested more than {MAX_NESTING} deep")));
    }
    let kind = r.u32(field)?;
    let count = r.u64(field)?;
    // Fewest bytes of one element: strings have a length, arrays an element type and a count.
    let least = match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        8 | 10..=12 => 8,
        9 => 12,
        _ => return Err(r.invalid(field, at, format!("unknown element type {kind}"))),
    };
    let n = r.check_count(field, at + 4, count, least)?;
    Ok(match kind {
        0 => Array::U8(r.numbers(n, field, u8::from_le_bytes)?),
        1 => Array::I8(r.numbers(n, field, i8::from_le_bytes)?),
        2 => Array::U16(r.numbers(n, field, u16::from_le_bytes)?),
        3 => Array::I16(r.numbers(n, field, i16::from_le_bytes)?),
        4 => Array::U32(r.numbers(n, field, u32::from_le_bytes)?),
        5 => Array::I32(r.numbers(n, field, i32::from_le_bytes)?),
        6 => Array::F32(r.numbers(n, field, f32::from_le_bytes)?),
        7 => Array::Bool(r.bools(n, field)?),
        8 => Array::Str((0..n).map(|_| r.string(field)).collect::<Result<_, _>>()?),
        9 => Array::Nested((0..n).map(|_| array(r, field, depth + 1)).collect::<Result<_, _>>()?),
        10 => Array::U64(r.numbers(n, field, u64::from_le_bytes)?),
        11 => Array::I64(r.numbers(n, field, i64::from_le_bytes)?),
        _ => Array::F64(r.numbers(n, field, f64::from_le_bytes)?),
    })
}

fn alignment(r: &Reader, metadata: &Metadata) -> Result<usize, GgufError> {
    const KEY: &str = "general.alignment";
    let alignment = metadata.opt_u32(KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || !ALIGNMENTS.contains(&alignment) {
        let problem = format!("{alignment} is not a power of two from {} to {}", ALIGNMENTS.start(), ALIGNMENTS.end());
        return Err(r.invalid(format!("metadata key {KEY}"), r.at, problem));
    }
    Ok(alignment as usize)
}

/// One tensor entry. Its offset is still relative to the start of the data.
fn tensor(r: &mut Reader, i: u64, alignment: usize) -> Result<TensorInfo, GgufError> {
    let name = r.string(&format!("name of tensor {i}"))?;
    let field = format!("tensor {name}");
    let at = r.at;
    let dims = r.u32(&field)?;
    if dims == 0 || dims > MAX_DIMS {
        return Err(r.invalid(field, at, format!("{dims} dimensions, where 1 to {MAX_DIMS} are possible")));
    }
    let mut shape = Vec::with_capacity(dims as usize);
    for _ in 0..dims {
        let at = r.at;
        let dim = r.u64(&field)?;
        let dim = usize::try_from(dim).ok().filter(|&d| d > 0);
        shape.push(dim.ok_or_else(|| r.invalid(&field, at, "a dimension is zero or too large"))?);
    }
    shape.reverse();
    let type_at = r.at;
    let number = r.u32(&field)?;
    let format = format(number).ok_or_else(|| GgufError::UnsupportedFormat {
        file: r.file.into(),
        tensor: name.clone(),
        found: type_name(number),
    })?;
    let bytes = size(format, &shape).map_err(|problem| r.invalid(&field, type_at, problem))?;
    let offset_at = r.at;
    let offset = r.u64(&field)?;
    let aligned = usize::try_from(offset).ok().filter(|offset| offset % alignment == 0);
    let offset = aligned
        .ok_or_else(|| r.invalid(field, offset_at, format!("offset {offset} is not a multiple of {alignment}")))?;
    Ok(TensorInfo { name, format, shape, offset, bytes })
}

fn size(format: Format, shape: &[usize]) -> Result<usize, String> {
    let (cols, outer) = shape.split_last().ok_or("no dimensions")?;
    let rows = outer.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let rows = rows.ok_or_else(|| format!("the size of shape {shape:?} overflows"))?;
    format.bytes(rows, *cols).map_err(|e| format!("shape {shape:?}: {e}"))
}

/// Makes offsets absolute, and checks that every tensor lies inside the file and apart from the others.
fn place(r: &Reader, tensors: &mut [TensorInfo], alignment: usize) -> Result<(), GgufError> {
    let start = r.at.next_multiple_of(alignment);
    for tensor in tensors.iter_mut() {
        let field = || format!("tensor {}", tensor.name);
        let offset = start.checked_add(tensor.offset);
        let end = offset.and_then(|offset| offset.checked_add(tensor.bytes));
        let (Some(offset), Some(end)) = (offset, end) else {
            return Err(r.invalid(field(), start, format!("offset {} overflows", tensor.offset)));
        };
        if end > r.bytes.len() {
            let left = r.bytes.len().saturating_sub(offset);
            let needed = tensor.bytes as u64;
            return Err(GgufError::Truncated { file: r.file.into(), field: field(), offset, needed, left });
        }
        tensor.offset = offset;
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| t.offset);
    for pair in order.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            let problem = format!("its data overlaps that of tensor {}", pair[0].name);
            return Err(r.invalid(format!("tensor {}", pair[1].name), pair[1].offset, problem));
        }
    }
    Ok(())
}

fn format(number: u32) -> Option<Format> {
    Some(match number {
        0 => Format::F32,
        1 => Format::F16,
        2 => Format::Q4_0,
        3 => Format::Q4_1,
        6 => Format::Q5_0,
        7 => Format::Q5_1,
        8 => Format::Q8_0,
        12 => Format::Q4K,
        13 => Format::Q5K,
        14 => Format::Q6K,
        30 => Format::BF16,
        _ => return None,
    })
}

/// What people call the formats that are not supported.
fn type_name(number: u32) -> String {
    let name = match number {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return format!("number {number}"),
    };
    format!("{name} (number {number})")
}

/// A position in the bytes of a file; every read says what it reads.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    file: &'a str,
}

impl<'a> Reader<'a> {
    fn invalid(&self, field: impl Into<String>, offset: usize, problem: impl Into<String>) -> GgufError {
        GgufError::Invalid { file: self.file.into(), field: field.into(), offset, problem: problem.into() }
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn truncated(&self, field: &str, needed: u64) -> GgufError {
        let (file, field) = (self.file.into(), field.into());
        GgufError::Truncated { file, field, offset: self.at, needed, left: self.left() }
    }

    fn take(&mut self, n: usize, field: &str) -> Result<&'a [u8], GgufError> {
        let taken = self.bytes[self.at..].get(..n).ok_or_else(|| self.truncated(field, n as u64))?;
        self.at += n;
        Ok(taken)
    }

    fn number<T, const N: usize>(&mut self, field: &str, from: fn([u8; N]) -> T) -> Result<T, GgufError> {
        let taken = self.bytes[self.at..].first_chunk().ok_or_else(|| self.truncated(field, N as u64))?;
        self.at += N;
        Ok(from(*taken))
    }

    fn u32(&mut self, field: &str) -> Result<u32, GgufError> {
        self.number(field, u32::from_le_bytes)
    }

    fn u64(&mut self, field: &str) -> Result<u64, GgufError> {
        self.number(field, u64::from_le_bytes)
    }

    /// `n` was compared with the bytes left, by [`Reader::check_count`].
    fn numbers<T, const N: usize>(
        &mut self,
        n: usize,
        field: &str,
        from: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, GgufError> {
        let bytes = self.take(n * N, field)?;
        Ok(bytes.as_chunks().0.iter().map(|&chunk| from(chunk)).collect())
    }

    fn bools(&mut self, n: usize, field: &str) -> Result<Vec<bool>, GgufError> {
        let at = self.at;
        let bytes = self.take(n, field)?;
        match bytes.iter().find(|&&b| b > 1) {
            None => Ok(bytes.iter().map(|&b| b == 1).collect()),
            Some(b) => Err(self.invalid(field, at, format!("the byte {b} is no boolean"))),
        }
    }

    fn string_bytes(&mut self, field: &str) -> Result<&'a [u8], GgufError> {
        let at = self.at;
        let length = self.u64(field)?;
        let length = self.check_count(field, at, length, 1)?;
        self.take(length, field)
    }

    fn string(&mut self, field: &str) -> Result<String, GgufError> {
        let at = self.at;
        let bytes = self.string_bytes(field)?;
        let text = std::str::from_utf8(bytes).map_err(|e| self.invalid(field, at, format!("a string is {e}")))?;
        Ok(text.into())
    }

    /// Compares a count from the file with the bytes that are left, so that no count is allocated for on its word.
    fn check_count(&self, field: &str, offset: usize, count: u64, least: u64) -> Result<usize, GgufError> {
        let needed = count.saturating_mul(least);
        if needed > self.left() as u64 {
            let (file, field) = (self.file.into(), field.into());
            return Err(GgufError::Truncated { file, field, offset, needed, left: self.left() });
        }
        Ok(count as usize)
    }
}
