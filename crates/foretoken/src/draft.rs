//! `--draft`: what proposes tokens for the model to check.

use anyhow::Result;
use clap::{Args, ValueEnum};
use draft::{Auto, Drafter, Ngram, Predicted, Suffix, SuffixOptions};
use engine::batch::Speculation;
use engine::measure_cost;

use crate::load::Loaded;

/// How to draft.
#[derive(Debug, Args)]
#[command(next_help_heading = "Speculation")]
pub(crate) struct DraftArgs {
    /// What proposes tokens that the model then checks several at a time: the answer stays the same to the bit, and comes
    /// sooner where the guesses are good
    #[arg(long, value_name = "DRAFTER", value_enum, default_value_t = Kind::None)]
    draft: Kind,
    /// Tokens that are proposed ahead at most
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    draft_max: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Nothing
    None,
    /// What followed the last few tokens when they stood in the text before
    Ngram,
    /// What usually followed them, in this text and in the answers before
    Suffix,
    /// Whichever of these, and of what the client predicts, is expected to help most, for each step
    Auto,
}

impl DraftArgs {
    /// The drafter that was asked for, weighed against what rows cost here, which is measured now: some tenths of a second
    /// for a small model.
    ///
    /// # Errors
    /// When the costs cannot be measured.
    pub(crate) fn speculation(&self, loaded: &Loaded) -> Result<Option<Speculation>> {
        let ngram = || Box::new(Ngram::default()) as Box<dyn Drafter>;
        let suffix = || Box::new(Suffix::new(SuffixOptions::default())) as Box<dyn Drafter>;
        let drafter = match self.draft {
            Kind::None => return Ok(None),
            Kind::Ngram => ngram(),
            Kind::Suffix => suffix(),
            Kind::Auto => Box::new(Auto::new(vec![Box::new(Predicted), ngram(), suffix()])),
        };
        let curve = measure_cost(&loaded.model, &loaded.pool, loaded.kv_format)?;
        Ok(Some(Speculation { drafter, max_drafts: self.draft_max.into(), curve }))
    }
}
