//! Files that PyTorch's `torch.save` wrote: a zip archive of stored entries, in which a pickle says what the tensors are
//! called and where in the other entries their numbers lie.
//!
//! A pickle is a program. Ours is run by a machine ([`pickle`]) that knows the few words that a state dict needs, calls
//! nothing, and refuses the rest by name. Numbers stay where they are in the mapped file: what would have to be copied,
//! because it is compressed or its rows do not follow each other, is refused. Reading a file whole may not enter.

mod archive;
mod pickle;

use kernels::Format;

use self::archive::Archive;
use self::pickle::{Storage, Strided};
use super::shards::Entry;

/// The tensors of a file.
///
/// # Errors
/// What is wrong with the file, and what to do.
pub(super) fn entries(bytes: &[u8]) -> Result<Vec<(String, Entry)>, String> {
    let archive = Archive::open(bytes)?;
    let tensors = pickle::state_dict(archive.pickle(bytes)?).map_err(|problem| format!("data.pkl: {problem}"))?;
    let entry = |(name, tensor): (&str, Strided<'_>)| match place(&archive, &tensor) {
        Ok((offset, len)) => {
            let Strided { storage: Storage { kind, .. }, shape, .. } = tensor;
            Ok((name.to_owned(), Entry { format: kind.format.map_err(str::to_owned), shape, offset, bytes: len }))
        }
        Err(problem) => Err(format!("tensor {name} {problem}")),
    };
    tensors.into_iter().map(entry).collect()
}

/// Where in the file a tensor's numbers begin, and how many bytes they are.
fn place(archive: &Archive, tensor: &Strided<'_>) -> Result<(usize, usize), String> {
    let Strided { storage, offset, shape, strides } = tensor;
    if !is_contiguous(shape, strides) {
        return Err(format!(
            "has rows that do not follow each other (shape {shape:?}, strides {strides:?}): make it contiguous() and save \
             the file again"
        ));
    }
    let size = storage.kind.bytes;
    let entry = archive.storage(storage.key)?;
    let whole = storage.numbers.checked_mul(size).filter(|&bytes| bytes <= entry.len());
    let whole = whole.ok_or_else(|| {
        let (key, numbers, bytes) = (storage.key, storage.numbers, entry.len());
        format!("is in data/{key}, which should have {numbers} numbers of {size} bytes and has {bytes} bytes")
    })?;
    let count = shape.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim));
    let bytes = count.and_then(|count| count.checked_mul(size));
    let range = bytes.and_then(|bytes| {
        let start = offset.checked_mul(size)?;
        (start.checked_add(bytes)? <= whole).then_some((start, bytes))
    });
    let (start, bytes) =
        range.ok_or_else(|| format!("of shape {shape:?} from number {offset} on ends beyond data/{}", storage.key))?;
    Ok((entry.start + start, bytes))
}

/// Whether the numbers lie in the order of the shape, without gaps. Where a dimension is 1, its stride is never used.
fn is_contiguous(shape: &[usize], strides: &[usize]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut step = 1usize;
    shape.len() == strides.len()
        && shape.iter().zip(strides).rev().all(|(&dim, &stride)| {
            let fits = dim == 1 || stride == step;
            step = step.saturating_mul(dim);
            fits
        })
}

/// A kind of numbers.
#[derive(Debug, Clone, Copy)]
struct Kind {
    /// The class of its storages, in the module `torch`.
    class: &'static str,
    format: Result<Format, &'static str>,
    /// Bytes of a number.
    bytes: usize,
}

const KINDS: [Kind; 9] = [
    Kind { class: "FloatStorage", format: Ok(Format::F32), bytes: 4 },
    Kind { class: "HalfStorage", format: Ok(Format::F16), bytes: 2 },
    Kind { class: "BFloat16Storage", format: Ok(Format::BF16), bytes: 2 },
    Kind { class: "DoubleStorage", format: Err("F64"), bytes: 8 },
    Kind { class: "LongStorage", format: Err("I64"), bytes: 8 },
    Kind { class: "IntStorage", format: Err("I32"), bytes: 4 },
    Kind { class: "ShortStorage", format: Err("I16"), bytes: 2 },
    Kind { class: "ByteStorage", format: Err("U8"), bytes: 1 },
    Kind { class: "BoolStorage", format: Err("BOOL"), bytes: 1 },
];

#[cfg(test)]
mod tests;
