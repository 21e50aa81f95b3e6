//! Memory for weights: large regions on huge pages, from which matrices take their bytes.
//!
//! Reading weights in sequence then costs fewer page walks, and the machine's prefetching, which stops at page borders,
//! runs further. Matrices are smaller than a huge page, hence the shared regions.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// The size of a huge page.
const HUGE: usize = 2 << 20;
/// The size of a region, unless one piece needs more. What a region has left when the next piece does not fit is never
/// touched, and so costs no memory.
const REGION: usize = 64 << 20;
/// The alignment of a piece: a cache line, and a vector of AVX-512.
const PIECE: usize = 64;

/// One allocation, freed when the last piece of it is.
struct Region {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a region owns its bytes, and its pieces are disjoint.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn new(len: usize) -> Region {
        // A layout of an impossible size is the same misfortune as memory that is not there.
        let Ok(layout) = Layout::from_size_align(len.next_multiple_of(HUGE), HUGE) else {
            handle_alloc_error(Layout::new::<u8>());
        };
        // SAFETY: the size is not zero.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        #[cfg(target_os = "linux")]
        // SAFETY: the range is this allocation; advice changes no content, and refused advice costs nothing.
        unsafe {
            libc::madvise(start.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE)
        };
        Region { start, layout }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated with this very layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Where the pieces of one model come from.
#[derive(Default)]
pub(crate) struct Arena(Mutex<Option<(Arc<Region>, usize)>>);

impl Arena {
    /// `len` zeroed bytes, aligned to a cache line.
    pub(crate) fn zeroed(&self, len: usize) -> Aligned {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (region, used) = match current.take() {
            Some((region, used)) if region.layout.size() - used >= len => (region, used),
            _ => (Arc::new(Region::new(len.max(REGION))), 0),
        };
        // SAFETY: `used + len` is inside the region.
        let start = unsafe { region.start.add(used) };
        // SAFETY: as above; no other piece has these bytes.
        unsafe { start.write_bytes(0, len) };
        let end = (used + len).next_multiple_of(PIECE).min(region.layout.size());
        *current = Some((Arc::clone(&region), end));
        Aligned { start, len, _region: region }
    }
}

/// A piece of a region, at the start of a cache line.
pub(crate) struct Aligned {
    start: NonNull<u8>,
    len: usize,
    _region: Arc<Region>,
}

// SAFETY: the piece owns its bytes; shared access is by `&self` and reads only.
unsafe impl Send for Aligned {}
// SAFETY: as above.
unsafe impl Sync for Aligned {}

impl Aligned {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the piece is this long and was zeroed, hence initialised.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}
