//! What users write to name a model.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::SourceError;
use super::hub::HubRepo;
use super::pip::Package;

/// A model's name, as one parses it: `owner/name`, `owner/name@revision`, `owner/name:FILE.gguf` or `owner/name:Q4_K_M`
/// on the hub, a directory, a `.gguf` file, or `pip:PACKAGE` (`pip:PACKAGE==VERSION`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelId {
    /// A repository on the hub.
    Hub(HubRepo),
    /// A directory with `config.json`.
    Directory(PathBuf),
    /// A GGUF file.
    GgufFile(PathBuf),
    /// A Python package that holds a model.
    Pip(Package),
}

impl FromStr for ModelId {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<ModelId, SourceError> {
        let fail = |problem: &str| Err(SourceError::Id { text: text.into(), problem: problem.into() });
        if text.is_empty() {
            return fail("the name of a model is empty");
        }
        if let Some(package) = text.strip_prefix("pip:") {
            return match Package::parse(package) {
                Some(package) => Ok(ModelId::Pip(package)),
                None => fail("not the name of a Python package (letters, digits, '-', '_', '.', and then ==VERSION)"),
            };
        }
        let path = Path::new(text);
        if path.is_dir() {
            return directory(path).or_else(|problem| fail(&problem));
        }
        if path.is_file() {
            return match is_gguf(path) {
                true => Ok(ModelId::GgufFile(path.into())),
                false => fail("a model file must be a .gguf file; of safetensors name the directory"),
            };
        }
        if let Some(repo) = HubRepo::parse(text) {
            // `models/x.gguf` reads like a repository, but nobody means one.
            return if repo.file.is_none() && is_gguf(path) {
                fail("there is no such file")
            } else {
                Ok(ModelId::Hub(repo))
            };
        }
        if is_gguf(path) || text.starts_with(['/', '.', '~']) || text.matches('/').count() > 1 {
            return fail("there is no such file or directory");
        }
        fail("neither a file or directory here nor a repository on the hub; those are called owner/name")
    }
}

/// A directory is a model if it has a config, or exactly one GGUF file.
fn directory(path: &Path) -> Result<ModelId, String> {
    if path.join("config.json").is_file() {
        return Ok(ModelId::Directory(path.into()));
    }
    let entries = std::fs::read_dir(path).map_err(|e| format!("cannot read the directory: {e}"))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| is_gguf(p)).collect();
    files.sort();
    match files.as_slice() {
        [] => Err("the directory has no config.json and no .gguf file".into()),
        [file] => Ok(ModelId::GgufFile(file.clone())),
        files => Err(format!("the directory has no config.json and {} .gguf files; name one of them", files.len())),
    }
}

/// Whether a name ends with `.gguf`.
pub(super) fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelId::Hub(repo) => repo.fmt(f),
            ModelId::Directory(path) | ModelId::GgufFile(path) => path.display().fmt(f),
            ModelId::Pip(package) => write!(f, "pip:{package}"),
        }
    }
}
