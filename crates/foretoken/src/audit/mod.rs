//! `foretoken audit`: shows that drafts change no answer, on this machine, with this model.
//!
//! Two proofs. *Identity*: prompts are answered plainly and then with every drafter, in every company, and compared to
//! the last bit. *The law*: where answers may differ and only their probabilities may not, a model of sixteen letters
//! answers one prompt thousands of times, and chi-square tests compare with the exact law. Both show what was drafted, for
//! a comparison in which nothing was proves nothing.
//!
//! The room for what is compared and how it is told. How drafts are made, checked or accepted may not enter: the engine
//! that is audited is the one that serves.

mod drive;
mod foresight;
mod identity;
mod law;
mod letters;
mod prompts;
mod report;

use std::fs;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};
use spec::{CostCurve, Rule};

use crate::bench::spec::questions::Questions;
use crate::draft::Kind;
use cli::load::ModelArgs;
use cli::machine;
use cli::prompts::Encoder;
use identity::{Run, Shape, Source, Subject};

#[derive(Debug, Clone, Args)]
pub(crate) struct AuditArgs {
    /// A Hugging Face repository, a directory, a .gguf file or pip:PACKAGE [default: SmolLM2-135M-Instruct]
    #[arg(long, short, value_name = "MODEL")]
    model: Option<String>,
    /// Prompts to answer, one a line: text, or a JSON object with `prompt` or `turns` [default: eight built-in ones]
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Use the first N prompts only
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Drafters; `foresight` is the audit's own, which knows the plain answers and spoils some of its drafts
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "foresight,ngram,auto")]
    drafters: Vec<Source>,
    /// Temperatures, which run together
    #[arg(long, value_name = "T", value_delimiter = ',', default_value = "0,0.7,1", allow_negative_numbers = true)]
    temperatures: Vec<f32>,
    /// Acceptance rules: keyed, ratio
    #[arg(long, value_name = "RULES", value_delimiter = ',', default_value = "keyed,ratio")]
    rules: Vec<Rule>,
    /// Requests at the same time; the most also in too little memory
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4,16")]
    concurrency: Vec<NonZeroUsize>,
    /// Threads to compute with
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2")]
    threads: Vec<NonZeroUsize>,
    /// Tokens of an answer at most; about three pages of memory, so that too little of it is felt
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Answers of the small model in each test of the law
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(1..))]
    answers: u32,
    /// Show one of the two alone: `law` needs no model
    #[arg(long, value_name = "PART", value_enum)]
    only: Option<Part>,
    /// At most four prompts, 16 tokens and 8,000 answers, and only the greatest of concurrencies and threads: some
    /// seconds instead of some minutes
    #[arg(long)]
    quick: bool,
    /// Write all of it to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Identity,
    Law,
}

/// What a quick audit has at most.
const QUICK_PROMPTS: u32 = 4;
const QUICK_TOKENS: u32 = 16;
const QUICK_ANSWERS: u32 = 8000;

/// A cost curve by which every draft pays: an audit wants as many as it can get.
fn free_rows() -> Result<CostCurve> {
    Ok(CostCurve::new(&[1, 2], &[0], &[1.0, 1.000_001])?)
}

/// # Errors
/// When something could not be run, and when a proof fails: the process then ends with exit code 1.
pub(crate) fn run(args: &AuditArgs) -> Result<()> {
    args.check()?;
    let args = &args.settled();
    let mut found = Found::default();
    if args.only != Some(Part::Law) {
        found.identity(args)?;
    }
    if args.only != Some(Part::Identity) {
        found.law(args)?;
    }
    if let Some(path) = &args.json {
        let report = serde_json::to_string_pretty(&found.json())?;
        fs::write(path, report).with_context(|| format!("cannot write '{}'", path.display()))?;
    }
    found.verdict()
}

impl AuditArgs {
    fn check(&self) -> Result<()> {
        for rule in &self.rules {
            ensure!(rule.is_lossless(), "--rules: {rule} is lossy by design: there is nothing to prove");
        }
        for &temperature in &self.temperatures {
            let fine = temperature.is_finite() && temperature >= 0.0;
            ensure!(fine, "--temperatures: {temperature} is none; it must be 0 or more");
        }
        let draws = self.temperatures.iter().any(|&temperature| temperature > 0.0);
        ensure!(draws || self.only != Some(Part::Law), "--temperatures: the law needs one above 0");
        Ok(())
    }

    /// What `--quick` leaves of it.
    fn settled(&self) -> AuditArgs {
        let mut args = self.clone();
        if args.quick {
            args.limit = Some(args.limit.map_or(QUICK_PROMPTS, |limit| limit.min(QUICK_PROMPTS)));
            args.max_tokens = args.max_tokens.min(QUICK_TOKENS);
            args.answers = args.answers.min(QUICK_ANSWERS);
            args.concurrency = args.concurrency.iter().copied().max().into_iter().collect();
            args.threads = args.threads.iter().copied().max().into_iter().collect();
        }
        args
    }

    fn shapes(&self) -> Vec<Shape> {
        let all = |threads: NonZeroUsize| {
            self.concurrency.iter().map(move |at_once| Shape { at_once: at_once.get(), threads, tight: false })
        };
        let mut shapes: Vec<Shape> = self.threads.iter().flat_map(|&threads| all(threads)).collect();
        if let Some(&most) = shapes.iter().max_by_key(|shape| (shape.at_once, shape.threads)) {
            shapes.push(Shape { tight: true, ..most });
        }
        shapes
    }

    /// Every combination, plain decoding in company first.
    fn runs(&self) -> Vec<Run> {
        let shapes = self.shapes();
        let run = |drafter: &Source, rule, shape| Run { drafter: drafter.clone(), rule, shape };
        let nothing = Source::Named(Kind::None);
        let mut runs: Vec<Run> = shapes.iter().map(|&shape| run(&nothing, Rule::Keyed, shape)).collect();
        for &rule in &self.rules {
            for drafter in &self.drafters {
                runs.extend(shapes.iter().map(|&shape| run(drafter, rule, shape)));
            }
        }
        runs
    }
}

/// What has been found so far.
#[derive(Default)]
struct Found {
    about: Value,
    identity: Vec<identity::Row>,
    law: Vec<law::Row>,
}

impl Found {
    fn identity(&mut self, args: &AuditArgs) -> Result<()> {
        let mut out = io::stdout();
        let subject = self.subject(args)?;
        eprintln!("{} requests plainly, each alone ...", subject.requests.len());
        let plain = subject.plain(args.threads.first().copied().unwrap_or(NonZeroUsize::MIN))?;
        report::identity_head(&mut out)?;
        for run in args.runs() {
            let row = subject.run(&run, &plain)?;
            report::identity_row(&row, &mut out)?;
            self.identity.push(row);
        }
        report::by_temperature(&self.identity, &mut out)?;
        if let Some(row) = self.identity.iter().find(|row| row.first.is_some()) {
            report::difference(row, &mut out)?;
        }
        Ok(writeln!(out)?)
    }

    /// The model and the questions: every prompt at every temperature.
    fn subject(&mut self, args: &AuditArgs) -> Result<Subject> {
        let lines = prompts::lines(args.prompts.as_deref())?;
        let threads = args.threads.iter().copied().max().unwrap_or(NonZeroUsize::MIN);
        let loaded = ModelArgs::new(args.model.clone(), threads).load(true)?;
        let encoder = Encoder { tokenizer: &loaded.tokenizer, template: loaded.template.as_ref() };
        let context = loaded.model.config().context.saturating_sub(args.max_tokens as usize);
        let mut prompts = Questions::new(&lines, &[], &encoder, context)?;
        prompts.all.truncate(args.limit.map_or(usize::MAX, |limit| limit as usize));
        let (model, temperatures) = (&loaded.name, &args.temperatures);
        println!("Identity: {} prompts at temperatures {temperatures:?}, answered by {model}", prompts.all.len());
        println!("as each alone without drafts? Tokens, log-probabilities to the last bit, text and end.");
        println!("*: in too little memory\n");
        if !prompts.too_long.is_empty() {
            println!("{} prompts are too long for the model's context and left out\n", prompts.too_long.len());
        }
        self.about = json!({ "model": model, "machine": machine::describe(), "temperatures": temperatures });
        Ok(Subject::new(loaded, &prompts.all, temperatures, args.max_tokens as usize))
    }

    fn law(&mut self, args: &AuditArgs) -> Result<()> {
        let mut out = io::stdout();
        let named = args.drafters.iter().filter_map(|drafter| match drafter {
            Source::Named(kind) if *kind != Kind::None => Some(kind.clone()),
            _ => None,
        });
        let plan = law::Plan {
            requests: args.answers as usize,
            rules: &args.rules,
            temperatures: &args.temperatures,
            drafters: &named.collect::<Vec<_>>(),
        };
        println!(
            "The law: {} answers of a model of 16 letters, with as many seeds, against the exact law",
            plan.requests
        );
        report::law_head(&mut out)?;
        let mut broken = Ok(());
        self.law = law::run(&plan, |row| {
            if broken.is_ok() {
                broken = report::law_row(row, &mut io::stdout());
            }
        })?;
        broken?;
        Ok(writeln!(out)?)
    }

    fn json(&self) -> Value {
        json!({
            "about": self.about,
            "identity": self.identity.iter().map(report::identity_json).collect::<Vec<_>>(),
            "law": self.law.iter().map(report::law_json).collect::<Vec<_>>(),
        })
    }

    /// # Errors
    /// When a proof failed.
    fn verdict(&self) -> Result<()> {
        let different = self.identity.iter().filter(|row| row.first.is_some()).count();
        let wrong = self.law.iter().filter(|row| !row.passes()).count();
        let tokens: usize = self.identity.iter().map(|row| row.tokens).sum();
        let drafts: u64 = self.identity.iter().map(|row| row.drafts.checked).sum();
        let (runs, cases) = (self.identity.len(), self.law.len());
        if different + wrong > 0 {
            bail!("the audit failed: {different} of {runs} runs differ, {wrong} of {cases} cases of the law are wrong");
        }
        let mut parts = Vec::new();
        if runs > 0 {
            parts.push(format!("{runs} runs are identical ({tokens} tokens compared, {drafts} drafts checked)"));
        }
        if cases > 0 {
            parts.push(format!("{cases} cases of the law are as they must be"));
        }
        println!("The audit passed: {}.", parts.join(", "));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::spec::questions::Question;

    const ONE: NonZeroUsize = NonZeroUsize::MIN;
    const NOTHING: Source = Source::Named(Kind::None);

    /// The small model, and prompts at two temperatures.
    fn subject() -> Subject {
        let prompts = [vec![0, 1, 2, 3, 0, 1], vec![5; 40], (0..20).map(|p| p * 7 % 16).collect(), vec![9]];
        let prompt = |(number, tokens): (u64, &Vec<u32>)| Question {
            number,
            id: format!("line {number}"),
            category: String::new(),
            tokens: tokens.clone(),
        };
        let prompts: Vec<Question> = (1..).zip(&prompts).map(prompt).collect();
        Subject::new(letters::load().unwrap(), &prompts, &[0.0, 1.0], 60)
    }

    fn run(drafter: Source, rule: Rule, tight: bool) -> Run {
        Run { drafter, rule, shape: Shape { at_once: 8, threads: ONE, tight } }
    }

    #[test]
    fn answers_with_drafts_are_the_plain_ones_in_any_memory() {
        let subject = subject();
        let plain = subject.plain(ONE).unwrap();
        for (rule, tight) in [(Rule::Keyed, false), (Rule::Keyed, true), (Rule::Ratio, false)] {
            let row = subject.run(&run(Source::Foresight, rule, tight), &plain).unwrap();
            assert!(row.first.is_none(), "{:?}", row.first);
            assert_eq!(row.requests, if rule == Rule::Ratio { 4 } else { 8 });
            assert!(row.drafts.accepted > 10 && (row.preemptions > 0) == tight, "{:?}", row.drafts);
        }
    }

    #[test]
    fn a_wrong_token_a_wrong_bit_and_a_wrong_end_are_found_where_they_are() {
        let subject = subject();
        let plain = subject.plain(ONE).unwrap();
        let first = |wrong: &[drive::Answer]| {
            let row = subject.run(&run(NOTHING, Rule::Keyed, false), wrong).unwrap();
            let mut text = Vec::new();
            report::difference(&row, &mut text).unwrap();
            let first = row.first.unwrap();
            ((first.prompt.clone(), first.temperature, first.position), String::from_utf8(text).unwrap())
        };
        let mut wrong = plain.clone();
        wrong[5].steps[7].0 = (plain[5].steps[7].0 + 1) % 16;
        let (place, text) = first(&wrong);
        assert_eq!(place, ("line 2".to_owned(), 1.0, 7));
        assert!(text.contains("prompt line 2 at temperature 1") && text.contains("token 8 of the answer"), "{text}");
        assert!(text.contains(&format!("found    token {}", plain[5].steps[7].0)), "{text}");
        let mut wrong = plain.clone();
        wrong[2].steps[3].1 = wrong[2].steps[3].1.map(|bits| bits ^ 1);
        assert_eq!(first(&wrong).0, ("line 3".to_owned(), 0.0, 3));
        let mut wrong = plain.clone();
        wrong[3].text.push('x');
        assert_eq!(first(&wrong).0, ("line 4".to_owned(), 0.0, plain[3].steps.len()));
    }

    #[test]
    fn a_proof_that_fails_fails_the_audit() {
        let subject = subject();
        let mut plain = subject.plain(ONE).unwrap();
        let mut found = Found::default();
        found.identity.push(subject.run(&run(NOTHING, Rule::Keyed, false), &plain).unwrap());
        assert!(found.verdict().is_ok());
        plain[0].steps.pop();
        found.identity.push(subject.run(&run(NOTHING, Rule::Keyed, false), &plain).unwrap());
        assert!(found.verdict().unwrap_err().to_string().contains("1 of 2 runs"));
    }
}
