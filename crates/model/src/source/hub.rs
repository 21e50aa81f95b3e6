//! Models of the Hugging Face hub, in the cache that other programs use as well.

use std::fmt;
use std::path::{Path, PathBuf};

use hf_hub::{Repo, RepoType};
use serde::Deserialize;

use super::hub_fetch::Fetch;
use super::id::is_gguf;
use super::{Kind, Progress, Settings, SourceError};
use crate::weights::{FILES, Origin, WeightFile};

/// A repository on the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubRepo {
    /// `owner/name`.
    pub repo: String,
    /// Branch, tag or commit; `main` if none is given.
    pub revision: Option<String>,
    /// Which of the repository's GGUF files: its name, or a part of it such as `Q4_K_M`.
    pub file: Option<String>,
}

impl HubRepo {
    /// Reads `owner/name[@revision][:file]`.
    pub(super) fn parse(text: &str) -> Option<HubRepo> {
        let (rest, file) = match text.split_once(':') {
            Some((rest, file)) => (rest, Some(file)),
            None => (text, None),
        };
        let (repo, revision) = match rest.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (rest, None),
        };
        let (owner, name) = repo.split_once('/')?;
        let sound = word(owner)
            && word(name)
            && revision.is_none_or(|r| r.split('/').all(word))
            && file.is_none_or(|f| f.split('/').all(word));
        sound.then(|| HubRepo { repo: repo.into(), revision: revision.map(Into::into), file: file.map(Into::into) })
    }

    pub(super) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// The repository at a revision, as the client calls it.
    pub(super) fn at(&self, revision: &str) -> Repo {
        Repo::with_revision(self.repo.clone(), RepoType::Model, revision.into())
    }

    /// Where the cache keeps the repository.
    pub(super) fn home(&self, settings: &Settings) -> PathBuf {
        settings.hub_cache.join(self.at("main").folder_name())
    }

    /// The directory in the cache that holds the files of the revision, if there is one.
    fn snapshot(&self, settings: &Settings) -> Option<PathBuf> {
        let home = self.home(settings);
        let by_commit = home.join("snapshots").join(self.revision());
        if by_commit.is_dir() {
            return Some(by_commit);
        }
        let commit = std::fs::read_to_string(home.join("refs").join(self.revision())).ok()?;
        Some(commit.trim()).filter(|c| word(c)).map(|c| home.join("snapshots").join(c)).filter(|dir| dir.is_dir())
    }
}

impl fmt::Display for HubRepo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        self.revision.iter().try_for_each(|r| write!(f, "@{r}"))?;
        self.file.iter().try_for_each(|file| write!(f, ":{file}"))
    }
}

/// A part of a path or address that leads nowhere else.
pub(super) fn word(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'+');
    !text.is_empty() && !text.starts_with('.') && text.bytes().all(plain)
}

/// The model, if all of it is in the cache.
pub(super) fn find(settings: &Settings, repo: &HubRepo) -> Option<Kind> {
    find_with(settings, repo, &["config.json", "tokenizer.json"])
}

/// The model, if its weights and the files `beside` them are in the cache.
fn find_with(settings: &Settings, repo: &HubRepo, beside: &[&str]) -> Option<Kind> {
    let dir = repo.snapshot(settings)?;
    let names = gguf_names(&dir);
    if repo.file.is_none() && complete(&dir, beside, !names.is_empty()) {
        return Some(Kind::Directory(dir));
    }
    // With several in the cache and none named, the hub must say whether there is one that is meant.
    choose(&names, repo.file.as_deref()).ok().map(|name| Kind::Gguf(dir.join(name)))
}

/// Of the files that a repository `has`, the one that says where its weights are. Safetensors are preferred to `gguf` files,
/// and those to what PyTorch wrote.
pub(super) fn weight_file(gguf: bool, has: impl Fn(&str) -> bool) -> Option<WeightFile> {
    FILES.into_iter().find(|file| has(file.name)).filter(|file| file.origin == Origin::Safetensors || !gguf)
}

/// Whether a snapshot has the files `beside` its weights, and all of those.
fn complete(dir: &Path, beside: &[&str], gguf: bool) -> bool {
    let has = |name: &str| dir.join(name).is_file();
    if !beside.iter().all(|name| has(name)) {
        return false;
    }
    weight_file(gguf, has).is_some_and(|file| {
        !file.is_index || index_files(&dir.join(file.name)).is_some_and(|files| files.iter().all(|f| has(f)))
    })
}

/// The files that an index of shards names, if all names are plain.
pub(super) fn index_files(path: &Path) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let mut files: Vec<String> = index.weight_map.into_values().collect();
    files.sort_unstable();
    files.dedup();
    files.iter().all(|f| word(f)).then_some(files)
}

fn gguf_names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok()).filter(|name| is_gguf(Path::new(name))).collect()
}

/// The GGUF file that is meant: by its name, by a part of its name, or the only one.
pub(super) fn choose<'a>(names: &'a [String], wanted: Option<&str>) -> Result<&'a str, String> {
    let fits = |name: &&String| wanted.is_none_or(|w| name.to_lowercase().contains(&w.to_lowercase()));
    if let Some(exact) = names.iter().find(|name| wanted == Some(name.as_str())) {
        return Ok(exact);
    }
    let fitting: Vec<&String> = names.iter().filter(fits).collect();
    match (fitting.as_slice(), wanted) {
        ([name], _) if name.contains("-of-0") => {
            Err(format!("{name} is part of a split GGUF file, which is not supported"))
        }
        ([name], _) => Ok(name),
        ([], Some(wanted)) => Err(format!("no GGUF file is called like {wanted}; there are {}", list(names))),
        ([], None) => Err("there are neither safetensors, GGUF files nor weights of PyTorch".into()),
        (several, _) => {
            let several: Vec<String> = several.iter().map(|s| s.to_string()).collect();
            Err(format!("there are several GGUF files, write REPOSITORY:FILE to choose one of {}", list(&several)))
        }
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// The model from the cache, or fetched.
pub(super) fn locate(settings: &Settings, repo: &HubRepo, progress: &dyn Progress) -> Result<Kind, SourceError> {
    if let Some(kind) = find(settings, repo) {
        return Ok(kind);
    }
    // A drafter has the tokenizer of its target. Whether this is one, and not a model of which another program has fetched a
    // part, only the hub could say: out of its reach, what is there has to do.
    let part = || find_with(settings, repo, &["config.json"]);
    if settings.offline {
        if let Some(kind) = part() {
            return Ok(kind);
        }
        let problem = "it is not in the cache, and HF_HUB_OFFLINE forbids to ask".into();
        return Err(SourceError::Unreachable { hub: settings.hub(), repo: repo.to_string(), problem });
    }
    let _lock = settings.lock(&format!("hub--{}", repo.repo.replace('/', "--")))?;
    // Another process may have fetched it while this one waited.
    if let Some(kind) = find(settings, repo) {
        return Ok(kind);
    }
    match Fetch::new(settings, repo, progress) {
        Ok(fetch) => fetch.all(),
        Err(error @ SourceError::Unreachable { .. }) => part().ok_or(error),
        Err(error) => Err(error),
    }
}
