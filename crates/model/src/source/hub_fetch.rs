//! Fetching a repository of the hub, at one commit, into the cache.

use std::fs::File;
use std::path::{Path, PathBuf};

use hf_hub::Cache;
use hf_hub::api::sync::{Api, ApiBuilder, ApiRepo};
use serde::Deserialize;

use super::hub::{HubRepo, choose, index_files, weight_file, word};
use super::hub_client::{self, Trouble};
use super::id::is_gguf;
use super::{Kind, Progress, Settings, SourceError};
use crate::weights::WeightFile;

/// Files beside the weights; of these a repository has what it has.
const BESIDE: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];
/// How often a download that breaks off is taken up again.
const ATTEMPTS: usize = 4;

/// What the hub says about a repository.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
}

/// A file of a repository. Only large files come with a checksum.
#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
}

/// One fetching of a repository.
pub(super) struct Fetch<'a> {
    settings: &'a Settings,
    repo: &'a HubRepo,
    progress: &'a dyn Progress,
    api: Api,
    listing: Listing,
}

impl<'a> Fetch<'a> {
    /// Asks the hub for the list of files.
    ///
    /// # Errors
    /// When it does not answer in time, or refuses.
    pub(super) fn new(
        settings: &'a Settings,
        repo: &'a HubRepo,
        progress: &'a dyn Progress,
    ) -> Result<Self, SourceError> {
        let fail = |problem: String| failure(settings, repo, &problem);
        let mut client = ApiBuilder::from_cache(Cache::new(settings.hub_cache.clone()))
            .with_token(settings.token.clone())
            .with_progress(false)
            .with_user_agent("foretoken", env!("CARGO_PKG_VERSION"));
        if let Some(endpoint) = &settings.endpoint {
            client = client.with_endpoint(endpoint.clone());
        }
        let api = client.build().map_err(|e| fail(e.to_string()))?;
        let remote = api.repo(repo.at(repo.revision()));
        let list = move |_| -> Result<Listing, String> {
            let mut answer = remote.info_request().query("blobs", "true").call().map_err(|e| e.to_string())?;
            answer.body_mut().read_json().map_err(|e| e.to_string())
        };
        let listing = hub_client::run(progress, "list of files", settings.answer_limit, settings.stall_limit, list);
        let listing = listing.map_err(|trouble| fail(trouble.to_string()))?;
        if !word(&listing.sha) {
            return Err(fail("the answer names no commit".into()));
        }
        Ok(Fetch { settings, repo, progress, api, listing })
    }

    /// Fetches what the model needs, and only then lets the revision point to it: what the cache calls complete is.
    ///
    /// # Errors
    /// When the repository has no model, or a file cannot be fetched.
    pub(super) fn all(&self) -> Result<Kind, SourceError> {
        let has = |name: &str| self.sibling(name).is_some();
        let names = self.listing.siblings.iter().map(|s| s.rfilename.clone());
        let names: Vec<String> = names.filter(|n| is_gguf(Path::new(n)) && word(n)).collect();
        let is_directory = self.repo.file.is_none() && has("config.json");
        let kind = if let (true, Some(weights)) = (is_directory, weight_file(!names.is_empty(), has)) {
            Kind::Directory(self.directory(weights)?)
        } else {
            let name = choose(&names, self.repo.file.as_deref()).map_err(|problem| self.refuse(problem))?;
            Kind::Gguf(self.file(name)?)
        };
        self.remember()?;
        Ok(kind)
    }

    fn sibling(&self, name: &str) -> Option<&Sibling> {
        self.listing.siblings.iter().find(|s| s.rfilename == name)
    }

    /// Fetches config, tokenizer and weights; gives the snapshot's directory.
    fn directory(&self, weights: WeightFile) -> Result<PathBuf, SourceError> {
        for name in BESIDE.iter().filter(|name| self.sibling(name).is_some()) {
            self.file(name)?;
        }
        let file = self.file(weights.name)?;
        if weights.is_index {
            let files = index_files(&file).ok_or_else(|| self.refuse(format!("{} makes no sense", weights.name)))?;
            for name in &files {
                self.file(name)?;
            }
        }
        Ok(self.snapshot())
    }

    fn snapshot(&self) -> PathBuf {
        self.repo.home(self.settings).join("snapshots").join(&self.listing.sha)
    }

    /// Fetches one file, unless it is in the cache; gives its path there.
    fn file(&self, name: &str) -> Result<PathBuf, SourceError> {
        let cached = self.snapshot().join(name);
        if cached.is_file() {
            return Ok(cached);
        }
        let mut attempt = 1;
        let path = loop {
            match self.download(name) {
                Ok(path) => break path,
                // What was received stays, and the next attempt goes on behind it.
                Err(Trouble::Client(problem)) if attempt < ATTEMPTS && status(&problem).is_none() => attempt += 1,
                // A partial file that has all bytes, or too many, cannot be continued.
                Err(Trouble::Client(problem)) if attempt < ATTEMPTS && status(&problem) == Some(416) => {
                    self.drop_parts();
                    attempt = ATTEMPTS;
                }
                Err(trouble) => return Err(failure(self.settings, self.repo, &format!("{name}: {trouble}"))),
            }
        };
        self.verify(name, &path)?;
        Ok(path)
    }

    fn download(&self, name: &str) -> Result<PathBuf, Trouble> {
        let remote: ApiRepo = self.api.repo(self.repo.at(&self.listing.sha));
        let file = name.to_string();
        let limit = self.settings.stall_limit;
        hub_client::run(self.progress, name, limit, limit, move |relay| {
            remote.download_with_progress(&file, relay).map_err(|e| e.to_string())
        })
    }

    /// Compares size and checksum with the hub's list; a wrong file leaves the cache.
    fn verify(&self, name: &str, path: &Path) -> Result<(), SourceError> {
        let Some(sibling) = self.sibling(name) else { return Ok(()) };
        let size = std::fs::metadata(path).map_err(SourceError::io(path, "read"))?.len();
        let sum = sibling.lfs.as_ref().and_then(|lfs| lfs.sha256.as_deref());
        let problem = match (sibling.size, sum) {
            (Some(wanted), _) if wanted != size => format!("{name} came with {size} bytes, not {wanted}"),
            (_, Some(wanted)) if sha256(path)? != wanted.to_lowercase() => {
                format!("{name} came with another SHA-256 than {wanted}")
            }
            _ => return Ok(()),
        };
        for wrong in [path.canonicalize().unwrap_or_default(), path.into()] {
            // Whichever of the two is not there need not go.
            let _ = std::fs::remove_file(wrong);
        }
        Err(self.refuse(format!("{problem}; it was removed, try again")))
    }

    /// Removes partial downloads of this repository. Its lock is held, so that nobody is writing them.
    fn drop_parts(&self) {
        let blobs = self.repo.home(self.settings).join("blobs");
        for entry in std::fs::read_dir(blobs).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|e| e == "part") {
                // If it stays, the next attempt fails as this one did, and says so.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Lets the revision point to the commit that was fetched.
    fn remember(&self) -> Result<(), SourceError> {
        let home = self.repo.home(self.settings);
        let cache = Cache::new(self.settings.hub_cache.clone());
        if self.repo.revision() != self.listing.sha {
            let at = cache.repo(self.repo.at(self.repo.revision()));
            at.create_ref(&self.listing.sha).map_err(SourceError::io(&home.join("refs"), "write"))?;
        }
        // The client has made a reference from the commit to itself, which other programs would list.
        let _ = std::fs::remove_file(home.join("refs").join(&self.listing.sha));
        Ok(())
    }

    fn refuse(&self, problem: String) -> SourceError {
        SourceError::Hub { hub: self.settings.hub(), repo: self.repo.to_string(), problem }
    }
}

/// The HTTP status that a message of the client is about.
fn status(problem: &str) -> Option<u16> {
    let (_, rest) = problem.split_once("http status: ")?;
    rest.get(..3)?.parse().ok()
}

/// An error of the client as one of ours: with an answer from the hub, or without.
fn failure(settings: &Settings, repo: &HubRepo, problem: &str) -> SourceError {
    let (hub, repo) = (settings.hub(), repo.to_string());
    let problem = match status(problem) {
        Some(404) => "there is no such repository, revision or file (or it is private: then set HF_TOKEN)".into(),
        Some(401 | 403) => {
            "access is denied; accept the model's terms on its page and set HF_TOKEN to a token that may read it".into()
        }
        _ => return SourceError::Unreachable { hub, repo, problem: problem.into() },
    };
    SourceError::Hub { hub, repo, problem }
}

/// SHA-256 of a file, in lower-case hexadecimal digits.
fn sha256(path: &Path) -> Result<String, SourceError> {
    let mut file = File::open(path).map_err(SourceError::io(path, "read"))?;
    let mut hash = super::wheel::Hashing::new(std::io::sink());
    std::io::copy(&mut file, &mut hash).map_err(SourceError::io(path, "read"))?;
    Ok(hash.hex())
}
