//! What is measured besides load: single events that a user would feel.

use std::io::Write;

use anyhow::{Result, bail};
use clap::Args;
use tokio::runtime::Runtime;

use super::intruder::{self, STREAMS, Setting};
use super::prefix::{self, SharedPrefix};
use super::{ServeArgs, Subject, table};

/// Single events that a user would feel.
#[derive(Debug, Args)]
#[command(next_help_heading = "Scenarios")]
pub(crate) struct ScenarioArgs {
    /// Let a prompt of N tokens arrive while 8 answers are under way, and report the largest gaps between their tokens;
    /// our own server also serves it in one piece, for comparison
    #[arg(long, value_name = "N", conflicts_with = "prompts")]
    intruder_prompt_tokens: Option<usize>,
    /// Send two requests whose first N tokens are the same, and report how much sooner the second has its first token
    #[arg(long, value_name = "N", conflicts_with = "prompts")]
    shared_prefix: Option<usize>,
    /// Times that each scenario is measured
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u64,
    /// Measure the scenarios only
    #[arg(long)]
    no_load: bool,
}

impl ScenarioArgs {
    pub(crate) fn check(&self) -> Result<()> {
        if self.rounds == 0 || self.intruder_prompt_tokens == Some(0) || self.shared_prefix == Some(0) {
            bail!("--rounds, --intruder-prompt-tokens and --shared-prefix must be at least 1");
        }
        if self.no_load && self.intruder_prompt_tokens.is_none() && self.shared_prefix.is_none() {
            bail!("--no-load leaves nothing to measure: add --intruder-prompt-tokens or --shared-prefix");
        }
        Ok(())
    }

    pub(crate) fn with_load(&self) -> bool {
        !self.no_load
    }

    /// Measures the shared prefix, if it was asked for.
    pub(crate) fn shared_prefix(
        &self,
        subject: &Subject,
        runtime: &Runtime,
        out: &mut impl Write,
    ) -> Result<Option<SharedPrefix>> {
        let Some(tokens) = self.shared_prefix else { return Ok(None) };
        let measured = prefix::measure(&subject.client, &subject.workload, (tokens, self.rounds));
        let measured = runtime.block_on(measured)?;
        table::shared_prefix(out, &measured)?;
        Ok(Some(measured))
    }

    /// Measures the long prompt as the server is, if it was asked for.
    pub(crate) fn intruder(
        &self,
        subject: &Subject,
        runtime: &Runtime,
        out: &mut impl Write,
    ) -> Result<Option<Setting>> {
        let Some(tokens) = self.intruder_prompt_tokens else { return Ok(None) };
        let budget = subject.own.as_ref().map(|own| own.conditions.row_budget);
        let name = match budget {
            Some(budget) if budget > tokens => format!("whole (row budget {budget})"),
            Some(budget) => format!("in chunks (row budget {budget})"),
            None => "as the server has it".to_owned(),
        };
        let from = (&subject.client, &subject.workload);
        let setting = runtime.block_on(intruder::measure(from, &name, budget, (tokens, self.rounds)))?;
        table::intruder(out, &setting)?;
        Ok(Some(setting))
    }

    /// Starts our own server again, with a row budget that takes the long prompt in one step, and measures that.
    pub(crate) fn whole_intruder(
        &self,
        args: &ServeArgs,
        runtime: &Runtime,
        out: &mut impl Write,
    ) -> Result<Option<Setting>> {
        let Some(tokens) = self.intruder_prompt_tokens.filter(|_| args.url.is_none()) else { return Ok(None) };
        let batch = args.batch.with_row_budget(tokens + 2 * STREAMS as usize);
        let subject = Subject::start(args, &batch, runtime)?;
        let setting = self.intruder(&subject, runtime, out)?;
        subject.stop()?;
        Ok(setting)
    }
}
