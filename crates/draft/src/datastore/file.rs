//! The file of a datastore: texts as token ids, and their places in the order of what follows them.
//!
//! All numbers are little-endian. A header of 64 bytes (see [`Header`]) is followed by the tokens, u32 each, with [`END`]
//! after every document; and by the places of all tokens but these ends, u32 each, sorted by the [`ORDER`] tokens that
//! stand there (an end is greater than any token, and nothing behind it counts), equals by place. This is a suffix array
//! as far as anyone looks.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use model::Mapped;
use model::tokenizer::Tokenizer;

/// Stands behind each document. No token: vocabularies are far smaller.
pub(super) const END: u32 = u32::MAX;

/// Tokens by which places are sorted: the longest match that can be asked for.
pub const ORDER: usize = 16;

const MAGIC: [u8; 8] = *b"FORETKDS";
const VERSION: u32 = 1;
const HEADER: usize = 64;

/// A file that is no usable datastore.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum DatastoreError {
    #[error("cannot {action} the datastore '{}': {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("'{}' is no datastore: build one with `foretoken datastore build`", path.display())]
    Kind { path: PathBuf },
    #[error("the datastore '{}' has format {found}; this program reads format {VERSION}: build it again", path.display())]
    Version { path: PathBuf, found: u32 },
    #[error("the datastore '{}' is damaged: {what}; build it again", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error(
        "the datastore '{}' was built for another tokenizer ({vocab} tokens, fingerprint {fingerprint:016x}; the model has \
         {model_vocab}, {model_fingerprint:016x}): build one with this model", path.display()
    )]
    Tokenizer { path: PathBuf, vocab: usize, fingerprint: u64, model_vocab: usize, model_fingerprint: u64 },
}

/// What a datastore says of itself. In the file: magic, version u32, vocabulary u32, fingerprint u64, order u32, 0 u32,
/// tokens u64, documents u64, checksum of the rest u64, checksum of the header before it u64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Highest token id + 1.
    pub vocab: u32,
    /// That of the tokenizer, [`Tokenizer::fingerprint`].
    pub fingerprint: u64,
    /// Tokens, ends of documents included.
    pub tokens: u64,
    /// Documents.
    pub documents: u64,
    /// Of everything behind the header.
    checksum: u64,
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER] {
        let Header { vocab, fingerprint, tokens, documents, checksum } = self;
        let mut bytes = [0; HEADER];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC);
        [VERSION, vocab].iter().for_each(|n| put(&n.to_le_bytes()));
        put(&fingerprint.to_le_bytes());
        [ORDER as u32, 0].iter().for_each(|n| put(&n.to_le_bytes()));
        [tokens, documents, checksum].iter().for_each(|n| put(&n.to_le_bytes()));
        let sum = Checksum::of(&bytes[..HEADER - 8]);
        bytes[HEADER - 8..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Header, DatastoreError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(DatastoreError::Kind { path: path.to_owned() });
        }
        let damaged = |what: &str| DatastoreError::Damaged { path: path.to_owned(), what: what.to_owned() };
        if bytes.len() < HEADER {
            return Err(damaged("it ends within its header"));
        }
        let long = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(field)
        };
        let version = word(bytes, 2);
        if version != VERSION {
            return Err(DatastoreError::Version { path: path.to_owned(), found: version });
        }
        if long(HEADER - 8) != Checksum::of(&bytes[..HEADER - 8]) {
            return Err(damaged("its header has changed"));
        }
        if word(bytes, 6) as usize != ORDER {
            return Err(damaged("its places are sorted in another way"));
        }
        let header = Header {
            vocab: word(bytes, 3),
            fingerprint: long(16),
            tokens: long(32),
            documents: long(40),
            checksum: long(48),
        };
        let places = header.tokens.checked_sub(header.documents);
        let words = places.and_then(|places| places.checked_add(header.tokens));
        let len = words.and_then(|words| words.checked_mul(4)?.checked_add(HEADER as u64));
        match len {
            Some(len) if len == bytes.len() as u64 && header.tokens < u64::from(END) => Ok(header),
            Some(len) => Err(damaged(&format!("it should have {len} bytes and has {}", bytes.len()))),
            None => Err(damaged("its header cannot be")),
        }
    }
}

/// FNV-1a, over words where it can: finds damage, not malice.
struct Checksum(u64);

impl Checksum {
    fn new() -> Checksum {
        Checksum(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, word: u32) {
        self.0 = (self.0 ^ u64::from(word)).wrapping_mul(0x0000_0100_0000_01b3);
    }

    /// Of bytes that are words.
    fn of(bytes: &[u8]) -> u64 {
        let mut sum = Checksum::new();
        (0..bytes.len() / 4).for_each(|index| sum.add(word(bytes, index)));
        sum.0
    }
}

/// The u32 at `index`; [`END`] where there is none.
fn word(bytes: &[u8], index: usize) -> u32 {
    let start = index.saturating_mul(4);
    let word = bytes.get(start..start.saturating_add(4)).and_then(|word| word.try_into().ok());
    word.map_or(END, u32::from_le_bytes)
}

/// A datastore in memory, as far as it is read.
#[derive(Debug)]
pub struct Store {
    header: Header,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped(Mapped),
    #[cfg(test)]
    Owned(Vec<u8>),
}

impl Store {
    /// Opens a datastore whose header and length are in order. What it holds is not read through: see
    /// [`check`](Store::check).
    ///
    /// # Errors
    ///
    /// A file that cannot be read, is no datastore, is of another format or damaged.
    pub fn open(path: &Path) -> Result<Store, DatastoreError> {
        let io = |source| DatastoreError::Io { action: "open", path: path.to_owned(), source };
        // An empty file cannot be mapped.
        if std::fs::metadata(path).map_err(io)?.len() == 0 {
            return Err(DatastoreError::Kind { path: path.to_owned() });
        }
        let mapped = Mapped::open(path).map_err(io)?;
        Ok(Store { header: Header::from_bytes(path, &mapped)?, bytes: Bytes::Mapped(mapped) })
    }

    #[cfg(test)]
    pub(super) fn from_bytes(bytes: Vec<u8>) -> Result<Store, DatastoreError> {
        Ok(Store { header: Header::from_bytes(Path::new("memory"), &bytes)?, bytes: Bytes::Owned(bytes) })
    }

    /// What it says of itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Whether the contents are those that were written. Reads everything.
    pub fn check(&self) -> bool {
        Checksum::of(&self.bytes()[HEADER..]) == self.header.checksum
    }

    /// Refuses a tokenizer that gives texts other ids.
    ///
    /// # Errors
    ///
    /// [`DatastoreError::Tokenizer`], which names `path`.
    pub fn check_tokenizer(&self, path: &Path, tokenizer: &Tokenizer) -> Result<(), DatastoreError> {
        let Header { vocab, fingerprint, .. } = self.header;
        let (vocab, model_vocab, model_fingerprint) = (vocab as usize, tokenizer.vocab_size(), tokenizer.fingerprint());
        if fingerprint == model_fingerprint {
            return Ok(());
        }
        let path = path.to_owned();
        Err(DatastoreError::Tokenizer { path, vocab, fingerprint, model_vocab, model_fingerprint })
    }

    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(mapped) => mapped,
            #[cfg(test)]
            Bytes::Owned(bytes) => bytes,
        }
    }

    /// The token at a place; [`END`] at the end of a document and beyond the last.
    pub(super) fn token(&self, place: u64) -> u32 {
        if place >= self.header.tokens {
            return END;
        }
        let token = word(self.bytes(), HEADER / 4 + place as usize);
        // Damage must not come to a model as a token that it does not know.
        if token < self.header.vocab { token } else { END }
    }

    fn places(&self) -> usize {
        (self.header.tokens - self.header.documents) as usize
    }

    /// The place that is `rank`-th in order.
    pub(super) fn place(&self, rank: usize) -> u64 {
        word(self.bytes(), HEADER / 4 + self.header.tokens as usize + rank).into()
    }

    /// The ranks of all places where `pattern` stands, of which [`ORDER`] tokens at most are looked at.
    pub(super) fn find(&self, pattern: &[u32]) -> Range<usize> {
        let pattern = &pattern[..pattern.len().min(ORDER)];
        let compare = |rank: usize| {
            let place = self.place(rank);
            let here = (0..pattern.len() as u64).map(|i| self.token(place + i));
            here.cmp(pattern.iter().copied())
        };
        let start = partition(0..self.places(), |rank| compare(rank).is_lt());
        start..partition(start..self.places(), |rank| compare(rank).is_le())
    }
}

/// The first of `ranks` of which `before` does not hold, where it holds of a beginning.
fn partition(ranks: Range<usize>, before: impl Fn(usize) -> bool) -> usize {
    let Range { mut start, mut end } = ranks;
    while start < end {
        let middle = start + (end - start) / 2;
        if before(middle) {
            start = middle + 1;
        } else {
            end = middle;
        }
    }
    start
}

/// Writes a datastore. `header` has everything but the checksum.
pub(super) fn write(
    out: &mut impl Write,
    tokenizer: (u32, u64),
    documents: u64,
    tokens: &[u32],
    places: &[u32],
) -> io::Result<Header> {
    let mut sum = Checksum::new();
    tokens.iter().chain(places).for_each(|&word| sum.add(word));
    let (vocab, fingerprint) = tokenizer;
    let header = Header { vocab, fingerprint, tokens: tokens.len() as u64, documents, checksum: sum.0 };
    let mut out = BufWriter::with_capacity(1 << 20, out);
    out.write_all(&header.to_bytes())?;
    for word in tokens.iter().chain(places) {
        out.write_all(&word.to_le_bytes())?;
    }
    out.flush()?;
    Ok(header)
}

/// Writes a file under another name first, so that whoever looks sees all of it or nothing.
pub(super) fn replace<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> Result<T, DatastoreError> {
    let io = |source| DatastoreError::Io { action: "write", path: path.to_owned(), source };
    let mut name = path.file_name().ok_or_else(|| io(io::ErrorKind::IsADirectory.into()))?.to_owned();
    name.push(format!(".part-{}", std::process::id()));
    let part = path.with_file_name(name);
    let written = File::create(&part).and_then(|mut file| {
        let written = write(&mut file)?;
        file.sync_all()?;
        std::fs::rename(&part, path)?;
        Ok(written)
    });
    // What is left of a failure helps nobody.
    written.map_err(|error| {
        let _ = std::fs::remove_file(&part);
        io(error)
    })
}
