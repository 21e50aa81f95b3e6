//! `--draft`: what proposes tokens for the model to check.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use draft::{
    Auto, Datastore, DatastoreOptions, Drafter, Lookahead, LookaheadOptions, Merged, Ngram, Predicted, Store, Suffix,
    SuffixOptions,
};
use engine::batch::{Check, Speculation};

use crate::cost_cache;
use crate::draft_model::SkipSet;
use crate::shipped;
use cli::load::Loaded;

/// How to draft.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Speculation")]
pub(crate) struct DraftArgs {
    /// What proposes tokens that the model then checks several at a time. The answer stays the same to the bit, and comes
    /// sooner where the guesses are good: auto, ngram, suffix, lookahead, datastore:FILE (see `foretoken datastore`), none,
    /// a smaller MODEL with the same tokenizer, or one that was trained to draft for this model (DSpark, DFlash, EAGLE, MTP,
    /// Medusa, Hydra), or skip: the model itself without some of its layers (skip:3,5,8-11).
    /// Several with + between them: auto:A+B takes the best guess for each step, merged:A+B has all of them checked.
    /// auto alone has ngram, suffix, and the drafter that comes with Foretoken for this model, if there is one. fixed:A has
    /// all that A drafts checked, whatever that costs (to compare with)
    #[arg(long, value_name = "DRAFTER", default_value = "auto")]
    draft: Kind,
    /// Tokens that are proposed ahead at most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    draft_max: u16,
    /// One token after the other, as --draft none
    #[arg(long)]
    no_speculation: bool,
    #[command(flatten)]
    allowance: Allowance,
}

/// What drafters may take.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Allowance {
    /// Tokens of past answers that drafters learn from, over all requests, the newest; 12 bytes each. 0: each request is
    /// drafted for from its own text alone
    #[arg(long, value_name = "TOKENS", default_value_t = Self::default().draft_history)]
    draft_history: u32,
    /// Memory for the keys and values of a model that drafts, in MiB, taken as it fills; requests that find no room there
    /// go on without its drafts
    #[arg(long, value_name = "MIB", default_value_t = Self::default().draft_kv_memory)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) draft_kv_memory: u32,
    /// What becomes of the weights of a drafter that was trained for the model: they become 8-bit, or stay as they are
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = DraftQuant::Q8_0)]
    pub(crate) draft_quant: DraftQuant,
    /// Measure anew what rows cost on this machine, which decides how many drafts pay, instead of going by an earlier run
    #[arg(long)]
    pub(crate) measure_costs: bool,
}

/// What becomes of a learned drafter's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DraftQuant {
    None,
    #[value(name = "q8_0")]
    Q8_0,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { draft_history: 1 << 20, draft_kv_memory: 512, draft_quant: DraftQuant::Q8_0, measure_costs: false }
    }
}

/// A drafter, as users name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing.
    None,
    /// What followed the last few tokens when they stood in the text before.
    Ngram,
    /// What usually followed them, in this text and in the answers before.
    Suffix,
    /// What the model itself finds in a window ahead of the text.
    Lookahead,
    /// What usually followed in the texts of this file.
    Datastore(PathBuf),
    /// Whichever of n-gram, suffix and the drafter that comes with the program for the model is expected to earn most, for
    /// each request and step; or none.
    Auto,
    /// Whichever of these is expected to earn most.
    Best(Vec<Kind>),
    /// What all of these say.
    Merged(Vec<Kind>),
    /// All that this one says, whatever it costs to check.
    Fixed(Box<Kind>),
    /// What a smaller model says, of this name.
    Model(String),
    /// What the model says without some of its layers.
    Skip(SkipSet),
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if let Some(layers) = name.strip_prefix("skip") {
            match layers.strip_prefix(':') {
                Some("") => return Err("no layers follow the colon".into()),
                Some(layers) => return layers.parse().map(Kind::Skip),
                None if layers.is_empty() => return Ok(Kind::Skip(SkipSet::Middle)),
                None => {}
            }
        }
        if let Some(path) = name.strip_prefix("datastore:") {
            return if path.is_empty() {
                Err("no file follows the colon".into())
            } else {
                Ok(Kind::Datastore(path.into()))
            };
        }
        if let Some(names) = name.strip_prefix("auto:") {
            return several(names).map(Kind::Best);
        }
        if let Some(names) = name.strip_prefix("merged:") {
            return several(names).map(Kind::Merged);
        }
        if let Some(name) = name.strip_prefix("fixed:") {
            return match name.parse()? {
                Kind::None | Kind::Fixed(_) => Err(format!("{name:?} cannot be checked in full")),
                kind => Ok(Kind::Fixed(Box::new(kind))),
            };
        }
        match name {
            "none" => Ok(Kind::None),
            "ngram" => Ok(Kind::Ngram),
            "suffix" => Ok(Kind::Suffix),
            "lookahead" => Ok(Kind::Lookahead),
            "auto" => Ok(Kind::Auto),
            name if name.contains('/') || name.ends_with(".gguf") || name.starts_with("pip:") => {
                Ok(Kind::Model(name.to_owned()))
            }
            _ => Err("there are auto, ngram, suffix, lookahead, datastore:FILE, skip, skip:LAYERS, auto:A+B, merged:A+B and \
                      none; a model is a path with a / in it, a .gguf file, a repository or pip:PACKAGE"
                .into()),
        }
    }
}

/// Drafters with + between their names.
fn several(names: &str) -> Result<Vec<Kind>, String> {
    let kind = |name: &str| match name.parse()? {
        Kind::None | Kind::Best(_) | Kind::Merged(_) | Kind::Fixed(_) => {
            Err(format!("{name:?} cannot be one of several drafters"))
        }
        kind => Ok(kind),
    };
    names.split('+').map(kind).collect()
}

fn join(kinds: &[Kind]) -> String {
    kinds.iter().map(Kind::to_string).collect::<Vec<_>>().join("+")
}

impl fmt::Display for Kind {
    /// As users write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::None => "none",
            Kind::Ngram => "ngram",
            Kind::Suffix => "suffix",
            Kind::Lookahead => "lookahead",
            Kind::Datastore(path) => return write!(f, "datastore:{}", path.display()),
            Kind::Auto => "auto",
            Kind::Best(kinds) => return write!(f, "auto:{}", join(kinds)),
            Kind::Merged(kinds) => return write!(f, "merged:{}", join(kinds)),
            Kind::Fixed(kind) => return write!(f, "fixed:{kind}"),
            Kind::Model(name) => name,
            Kind::Skip(SkipSet::Middle) => "skip",
            Kind::Skip(layers) => return write!(f, "skip:{layers}"),
        })
    }
}

impl Kind {
    /// The drafter for this model; `None`: nothing drafts.
    ///
    /// # Errors
    /// When it cannot draft for the model.
    pub(crate) fn drafter(&self, loaded: &Loaded, allowance: Allowance) -> Result<Option<Box<dyn Drafter>>> {
        // Whatever drafts has to be worth it: alone, too, it is weighed. And what the client predicts needs no drafter.
        let mut drafters: Vec<Box<dyn Drafter>> = vec![Box::new(Predicted)];
        match self {
            Kind::None => return Ok(None),
            Kind::Fixed(kind) => return kind.part(loaded, allowance).map(Some),
            Kind::Auto => drafters.extend(usual(loaded, allowance)),
            Kind::Best(kinds) => {
                for part in kinds {
                    drafters.push(part.part(loaded, allowance)?);
                }
            }
            alone => drafters.push(alone.part(loaded, allowance)?),
        }
        Ok(Some(Box::new(Auto::new(drafters))))
    }

    /// Which of its drafts are checked.
    pub(crate) fn check(&self) -> Check {
        if matches!(self, Kind::Fixed(_)) { Check::All } else { Check::Paying }
    }

    /// The drafter as one of several.
    fn part(&self, loaded: &Loaded, allowance: Allowance) -> Result<Box<dyn Drafter>> {
        let all = |kinds: &[Kind]| kinds.iter().map(|kind| kind.part(loaded, allowance)).collect::<Result<Vec<_>>>();
        Ok(match self {
            Kind::None => bail!("nothing drafts"),
            Kind::Fixed(kind) => bail!("fixed:{kind} cannot be one of several drafters"),
            Kind::Ngram => Box::new(Ngram::default()),
            Kind::Suffix => Box::new(suffix(allowance)),
            Kind::Lookahead => Box::new(Lookahead::new(LookaheadOptions::default())),
            Kind::Datastore(path) => datastore(path, loaded)?,
            Kind::Auto => Box::new(Auto::new(usual(loaded, allowance))),
            Kind::Best(kinds) => Box::new(Auto::new(all(kinds)?)),
            Kind::Merged(kinds) => Box::new(Merged::new(all(kinds)?)),
            Kind::Model(name) => allowance.other(name, loaded)?,
            Kind::Skip(layers) => allowance.without_layers(layers, loaded)?,
        })
    }
}

/// Who drafts where nobody was asked for: what needs no training, and what was trained for the model and comes with the
/// program.
fn usual(loaded: &Loaded, allowance: Allowance) -> Vec<Box<dyn Drafter>> {
    let mut drafters: Vec<Box<dyn Drafter>> = vec![Box::new(Ngram::default()), Box::new(suffix(allowance))];
    if let Some(dir) = shipped::drafter_for(&loaded.name) {
        // Nobody asked for it by name: an answer comes without it, too.
        match allowance.learned(&dir, &dir.display().to_string(), loaded) {
            Ok(drafter) => drafters.push(drafter),
            Err(error) => eprintln!("warning: {error:#}; going on without it"),
        }
    }
    drafters
}

fn suffix(allowance: Allowance) -> Suffix {
    Suffix::new(SuffixOptions { past_tokens: allowance.draft_history as usize, ..SuffixOptions::default() })
}

/// What drafts from the datastore at `path`, if that was built for the model's tokenizer.
fn datastore(path: &Path, loaded: &Loaded) -> Result<Box<dyn Drafter>> {
    let store = Store::open(path)?;
    store.check_tokenizer(path, &loaded.tokenizer)?;
    Ok(Box::new(Datastore::new(store, DatastoreOptions::default())))
}

impl DraftArgs {
    /// Whether anything is to draft.
    pub(crate) fn is_on(&self) -> bool {
        !self.no_speculation && self.draft != Kind::None
    }

    /// The drafter's name, as users write it.
    pub(crate) fn name(&self) -> String {
        self.draft.to_string()
    }

    /// The drafter that was asked for, weighed against what rows cost here, which is measured in the first run with a model
    /// and takes a second for a small one.
    ///
    /// # Errors
    /// When the drafter cannot draft for the model, or the costs cannot be measured.
    pub(crate) fn speculation(&self, loaded: &Loaded) -> Result<Option<Speculation>> {
        if !self.is_on() {
            return Ok(None);
        }
        let Some(drafter) = self.draft.drafter(loaded, self.allowance)? else { return Ok(None) };
        let curve = cost_cache::curve(loaded.into(), loaded, self.allowance.measure_costs)?;
        let check = self.draft.check();
        Ok(Some(Speculation { check, ..Speculation::new(drafter, self.draft_max.into(), curve) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafters_are_written_as_they_are_read() {
        let drafters = [
            "none",
            "ngram",
            "suffix",
            "lookahead",
            "auto",
            "datastore:a/b",
            "auto:ngram+skip:3",
            "merged:auto",
            "fixed:a/b",
        ];
        let models = ["skip", "skip:3,5,8-11", "./ngram", "a/b", "x.gguf", "pip:x"];
        for name in drafters.into_iter().chain(models) {
            assert_eq!(name.parse::<Kind>().map(|kind| kind.to_string()), Ok(name.to_owned()));
        }
        assert_eq!("./skip".parse(), Ok(Kind::Model("./skip".into())));
        let several = ["auto:", "merged:ngram+", "merged:none", "auto:merged:ngram+suffix", "fixed:none"];
        for wrong in ["", "ngrm", "skip:", "skipped", "skip:x", "datastore:"].into_iter().chain(several) {
            assert!(wrong.parse::<Kind>().is_err(), "{wrong}");
        }
    }
}
