//! Which pages are free, and how many sequences refer to each of the others.

/// The counts of all pages. A page without references is free, or kept by the prefix cache for whoever asks next.
#[derive(Debug)]
pub(crate) struct Pages {
    references: Vec<u32>,
    /// The last one is taken next: a page that was used already has its memory from the system.
    free: Vec<u32>,
}

impl Pages {
    /// Pages `0..count`, all free.
    pub(crate) fn new(count: u32) -> Pages {
        Pages { references: vec![0; count as usize], free: (0..count).rev().collect() }
    }

    pub(crate) fn total(&self) -> usize {
        self.references.len()
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Tables that a page is in.
    pub(crate) fn references(&self, page: u32) -> u32 {
        self.references[page as usize]
    }

    /// A page that was free and isn't any more. It has no reference yet.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// The end of a page's use: it has no reference left, and nothing wants its contents.
    pub(crate) fn give_back(&mut self, page: u32) {
        debug_assert_eq!(self.references(page), 0, "page {page} is in use");
        self.free.push(page);
    }

    /// One table more has the page. Returns whether it is the first.
    pub(crate) fn refer(&mut self, page: u32) -> bool {
        let references = &mut self.references[page as usize];
        *references += 1;
        *references == 1
    }

    /// One table less has the page. Returns whether it was the last.
    pub(crate) fn drop_reference(&mut self, page: u32) -> bool {
        let references = &mut self.references[page as usize];
        *references -= 1;
        *references == 0
    }
}
