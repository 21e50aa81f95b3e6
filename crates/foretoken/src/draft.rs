//! `--draft`: what proposes tokens for the model to check.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use draft::{Auto, Drafter, Ngram, Predicted, Suffix, SuffixOptions};
use engine::batch::Speculation;

use crate::cost_cache;
use crate::load::Loaded;

/// How to draft.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Speculation")]
pub(crate) struct DraftArgs {
    /// What proposes tokens that the model then checks several at a time. The answer stays the same to the bit, and comes
    /// sooner where the guesses are good: auto, ngram, suffix or none
    #[arg(long, value_name = "DRAFTER", default_value = "auto")]
    draft: Kind,
    /// Tokens that are proposed ahead at most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    draft_max: u16,
    /// One token after the other, as --draft none
    #[arg(long)]
    no_speculation: bool,
    /// Measure anew what rows cost on this machine, which decides how many drafts pay, instead of going by an earlier run
    #[arg(long)]
    measure_costs: bool,
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
    /// Whichever of these, and of what the client predicts, is expected to earn most, for each request and step; or none.
    Auto,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "none" => Ok(Kind::None),
            "ngram" => Ok(Kind::Ngram),
            "suffix" => Ok(Kind::Suffix),
            "auto" => Ok(Kind::Auto),
            _ => Err("there are auto, ngram, suffix and none".into()),
        }
    }
}

impl fmt::Display for Kind {
    /// As users write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::None => "none",
            Kind::Ngram => "ngram",
            Kind::Suffix => "suffix",
            Kind::Auto => "auto",
        })
    }
}

impl Kind {
    /// The drafter for this model; `None`: nothing drafts.
    ///
    /// # Errors
    /// When it cannot draft for the model.
    pub(crate) fn drafter(&self, _: &Loaded) -> Result<Option<Box<dyn Drafter>>> {
        let ngram = || Box::new(Ngram::default()) as Box<dyn Drafter>;
        let suffix = || Box::new(Suffix::new(SuffixOptions::default())) as Box<dyn Drafter>;
        Ok(Some(match self {
            Kind::None => return Ok(None),
            Kind::Ngram => ngram(),
            Kind::Suffix => suffix(),
            Kind::Auto => Box::new(Auto::new(vec![Box::new(Predicted), ngram(), suffix()])),
        }))
    }
}

impl DraftArgs {
    /// Whether anything is to draft.
    pub(crate) fn is_on(&self) -> bool {
        !self.no_speculation && self.draft != Kind::None
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
        let Some(drafter) = self.draft.drafter(loaded)? else { return Ok(None) };
        let curve = cost_cache::curve(loaded, self.measure_costs)?;
        Ok(Some(Speculation { drafter, max_drafts: self.draft_max.into(), curve }))
    }
}
