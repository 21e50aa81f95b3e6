//! The zip archive: where its entries lie.

use std::collections::HashMap;
use std::io::Cursor;
use std::ops::Range;

use zip::{CompressionMethod, ZipArchive};

/// Entries of an archive, at most: a model has one for each tensor, and a handful more.
const MAX_ENTRIES: usize = 1 << 20;

/// Where the entries of an archive lie in it.
pub(super) struct Archive {
    /// By name, the directory that all of them are in left out.
    entries: HashMap<String, Range<usize>>,
}

impl Archive {
    /// Reads the directory of an archive.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub(super) fn open(bytes: &[u8]) -> Result<Archive, String> {
        if bytes.first() == Some(&0x80) {
            return Err(
                "a bare pickle, as PyTorch wrote before version 1.6: load it with PyTorch and save it again".into()
            );
        }
        let unsound = |e: zip::result::ZipError| format!("not a sound zip archive of PyTorch: {e}; download it again");
        let mut zip = ZipArchive::new(Cursor::new(bytes)).map_err(unsound)?;
        if zip.len() > MAX_ENTRIES {
            return Err(format!("has {} entries, and may have {MAX_ENTRIES}", zip.len()));
        }
        let (mut entries, mut roots) = (HashMap::new(), Vec::new());
        for index in 0..zip.len() {
            let entry = zip.by_index_raw(index).map_err(unsound)?;
            let name = entry.name().map_err(unsound)?.into_owned();
            let Some((root, inner)) = name.split_once('/') else { continue };
            if inner != "data.pkl" && inner != "byteorder" && !inner.starts_with("data/") {
                continue;
            }
            if entry.encrypted() || entry.compression() != CompressionMethod::Stored {
                return Err(format!(
                    "its entry {name} is packed: PyTorch stores entries as they are, so save it again"
                ));
            }
            let start = entry.data_start().and_then(|start| usize::try_from(start).ok());
            let end = start.zip(usize::try_from(entry.size()).ok()).and_then(|(start, size)| start.checked_add(size));
            let range =
                start.zip(end).filter(|&(_, end)| end <= bytes.len() && entry.size() == entry.compressed_size());
            let (start, end) =
                range.ok_or_else(|| format!("its entry {name} ends beyond the file; download it again"))?;
            entries.insert(inner.to_owned(), start..end);
            roots.push(root.to_owned());
        }
        roots.dedup();
        if roots.len() != 1 || !entries.contains_key("data.pkl") {
            return Err("a zip archive without one data.pkl: torch.save did not write it".into());
        }
        match entries.get("byteorder").and_then(|range| bytes.get(range.clone())) {
            None | Some(b"little") => Ok(Archive { entries }),
            Some(_) => Err("its numbers are not in little-endian order: save it on another machine".into()),
        }
    }

    /// The pickle that says what the tensors are.
    pub(super) fn pickle<'b>(&self, bytes: &'b [u8]) -> Result<&'b [u8], String> {
        let range = self.entries.get("data.pkl").cloned();
        range.and_then(|range| bytes.get(range)).ok_or_else(|| "has no data.pkl".into())
    }

    /// Where the numbers of a storage lie.
    pub(super) fn storage(&self, key: &str) -> Result<Range<usize>, String> {
        self.entries.get(&format!("data/{key}")).cloned().ok_or_else(|| format!("is in data/{key}, which is missing"))
    }
}
