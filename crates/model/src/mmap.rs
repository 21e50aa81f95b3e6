//! Large files in memory without reading them: the one place of this crate with `unsafe`.
//!
//! What is in a file, and whether it makes sense, may not enter.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

use memmap2::{Mmap, UncheckedAdvice};

/// How far around a touched page the system maps pages that it has in memory anyway. What was released before would thus
/// come back with its neighbour, so that a release takes the surroundings along; they are cheap to map again.
const AROUND: usize = 64 << 10;

/// A file, mapped read-only. Its bytes are read when they are first touched.
#[derive(Debug)]
pub struct Mapped(Mmap);

impl Mapped {
    /// Maps a whole file.
    ///
    /// # Errors
    /// A file that cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Mapped> {
        let file = File::open(path)?;
        // SAFETY: the map is read-only and private to this value. As with every mapped weight file, another process that
        // truncates the file while it is in use would end this one with SIGBUS; files in a cache are replaced by rename.
        Ok(Mapped(unsafe { Mmap::map(&file) }?))
    }

    /// Tells the system that the pages of these bytes are not needed any more. Reading them again would only be slow.
    pub(crate) fn release(&self, range: Range<usize>) {
        let end = range.end.saturating_add(AROUND).min(self.0.len());
        let range = range.start.saturating_sub(AROUND).min(end)..end;
        if range.is_empty() {
            return;
        }
        // SAFETY: the map is a read-only map of a file, so that a dropped page is read from the file again when touched:
        // no reference into it ever sees other bytes.
        let advised = unsafe { self.0.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
        // Advice that is not taken costs memory, not correctness.
        drop(advised);
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
