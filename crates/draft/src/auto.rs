//! `auto`: for each request and step the proposal that is expected to help most, of several drafters'; or none, where
//! drafting takes more than it brings.

mod rated;

use std::collections::HashMap;
use std::time::Instant;

use kv::KvCache;
use model::Tap;
use spec::Proposal;

use self::rated::{Mean, Rated};
use crate::{Ask, Computed, DraftError, Drafter, Key, Outlook, Round, Silence, Verdict};

/// The share of a step's time that may go to trying drafters where they did not pay: it is what `auto` may lose.
const TRYING: f64 = 0.005;

/// Requests that count in how long an answer usually is.
const ANSWERS: f64 = 32.0;

/// How long an answer is as long as none has ended, in tokens.
const USUAL_ANSWER: f64 = 64.0;

/// Lets several drafters propose and takes, for each request, the proposal that is expected to save most time.
///
/// What drafters say of themselves is not believed. Every proposal, taken or not, is compared with what the request then
/// said, which corrects confidences in all requests and in this one; so the choice follows the text, from quotation to free
/// prose and back. And the time that a drafter takes is measured: one that takes more than it brings to a request is not
/// asked for it, but tried now and then, as often as a fixed share of the time allows. Of one drafter alone `auto` makes one
/// that knows when to be silent.
pub struct Auto {
    drafters: Vec<Rated>,
    /// Who made the proposal of a request that is being checked.
    taken: HashMap<Key, usize>,
    /// Tokens of answers that have ended.
    answer: Mean,
    steps: u64,
    /// Seconds since some moment.
    clock: Box<dyn FnMut() -> f64 + Send>,
}

/// What a step makes of time, in seconds.
#[derive(Debug, Clone, Copy)]
struct Worth {
    /// What a draft that stands saves.
    draft: f64,
    /// What it takes to check one.
    row: f64,
}

/// What is at hand for a request.
struct Found {
    best: Option<Best>,
    /// Why there may be nothing.
    silence: Silence,
}

struct Best {
    proposal: Proposal,
    drafter: usize,
    /// Seconds that it is expected to save.
    gain: f64,
}

impl Found {
    /// The reason that says most: a drafter that was not asked might have known something.
    fn silent(&mut self, reason: Silence) {
        let rank = |silence| match silence {
            Silence::Context => 0,
            Silence::NoMatch => 1,
            Silence::Behind => 2,
            Silence::DoesNotPay => 3,
        };
        if rank(reason) > rank(self.silence) {
            self.silence = reason;
        }
    }
}

impl Auto {
    /// Chooses among `drafters`; of equals, the earlier is taken.
    pub fn new(drafters: Vec<Box<dyn Drafter>>) -> Self {
        let start = Instant::now();
        Self::with_clock(drafters, Box::new(move || start.elapsed().as_secs_f64()))
    }

    fn with_clock(drafters: Vec<Box<dyn Drafter>>, clock: Box<dyn FnMut() -> f64 + Send>) -> Self {
        let drafters = drafters.into_iter().map(Rated::new).collect();
        Self { drafters, taken: HashMap::new(), answer: Mean::new(ANSWERS), steps: 0, clock }
    }

    /// The requests that a drafter is asked for, given what others have `found`.
    fn asked(
        &mut self,
        drafter: usize,
        round: &Round<'_>,
        asks: &[Ask<'_>],
        found: &[Found],
        worth: Worth,
    ) -> Vec<usize> {
        let allowance = TRYING * worth.draft * asks.len() as f64 / self.drafters.len() as f64;
        let answer = self.answer.or(USUAL_ANSWER);
        let rated = &mut self.drafters[drafter];
        let outlooks: Vec<Outlook> = asks.iter().map(|ask| rated.drafter.outlook(round, asks.len(), ask)).collect();
        let pays = |index: usize| {
            let otherwise = found[index].best.as_ref().map_or(0.0, |best| best.gain);
            let horizon = answer.min(asks[index].remaining as f64).max(1.0);
            rated.pays(&asks[index], outlooks[index], worth, otherwise, horizon)
        };
        let (mut asked, resting): (Vec<usize>, Vec<usize>) = (0..asks.len()).partition(|&index| pays(index));
        let resting = resting.into_iter().map(|index| (index, &asks[index], outlooks[index]));
        if let Some(index) = rated.trial(resting, allowance) {
            asked.push(index);
            asked.sort_unstable();
        }
        asked
    }

    /// Asks a drafter, and keeps of its proposals those that are better than what was found.
    fn ask(
        &mut self,
        drafter: usize,
        round: &mut Round<'_>,
        asks: &[Ask<'_>],
        found: &mut [Found],
        worth: Worth,
    ) -> Result<(), DraftError> {
        let asked = self.asked(drafter, round, asks, found, worth);
        let mut is_asked = vec![false; asks.len()];
        asked.iter().for_each(|&index| is_asked[index] = true);
        let skipped = found.iter_mut().zip(is_asked).filter(|(_, is_asked)| !is_asked);
        skipped.for_each(|(found, _)| found.silent(Silence::DoesNotPay));
        if asked.is_empty() {
            return Ok(());
        }
        let rated = &mut self.drafters[drafter];
        let some: Vec<Ask<'_>> = asked.iter().map(|&index| asks[index]).collect();
        let answers = rated.propose(round, &some, self.steps, &mut self.clock);
        let answers = answers.inspect_err(|_| some.iter().for_each(|ask| rated.said(ask, None, worth)))?;
        for ((ask, index), answer) in some.iter().zip(asked).zip(answers) {
            match answer {
                Err(reason) => {
                    if reason != Silence::Behind {
                        rated.said(ask, None, worth);
                    }
                    found[index].silent(reason);
                }
                Ok(said) => {
                    let proposal = rated.correct(ask.key, &said);
                    rated.said(ask, Some((said.tree(), &proposal)), worth);
                    let gain = rated.gain(&proposal, worth, ask.choose.draws());
                    if found[index].best.as_ref().is_none_or(|best| gain > best.gain) {
                        found[index].best = Some(Best { proposal, drafter, gain });
                    }
                }
            }
        }
        Ok(())
    }
}

impl Drafter for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn propose(
        &mut self,
        round: &mut Round<'_>,
        asks: &[Ask<'_>],
    ) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        self.steps += 1;
        for rated in &mut self.drafters {
            asks.iter().for_each(|ask| rated.compare(ask.key, ask.tokens));
        }
        let worth = Worth { draft: round.step_seconds / asks.len().max(1) as f64, row: round.row_seconds };
        let mut found: Vec<Found> = asks.iter().map(|_| Found { best: None, silence: Silence::Context }).collect();
        // What is cheap goes first: whoever has a good proposal already need not ask those who take long.
        let mut order: Vec<usize> = (0..self.drafters.len()).collect();
        order.sort_by(|&a, &b| self.drafters[a].seconds().total_cmp(&self.drafters[b].seconds()));
        let mut errors: Vec<DraftError> =
            order.iter().filter_map(|&drafter| self.ask(drafter, round, asks, &mut found, worth).err()).collect();
        if errors.len() == self.drafters.len()
            && let Some(error) = errors.pop()
        {
            return Err(error);
        }
        let answers = asks.iter().zip(found).map(|(ask, found)| {
            let Best { proposal, drafter, .. } = found.best.ok_or(found.silence)?;
            self.taken.insert(ask.key, drafter);
            Ok(proposal)
        });
        Ok(answers.collect())
    }

    fn taps(&self) -> Vec<Tap> {
        self.drafters.iter().flat_map(|rated| rated.drafter.taps()).collect()
    }

    fn readers(&self) -> usize {
        self.drafters.iter().map(|rated| rated.drafter.readers()).sum()
    }

    fn bytes_per_page(&self) -> usize {
        self.drafters.iter().map(|rated| rated.drafter.bytes_per_page()).sum()
    }

    fn attach(&mut self, cache: &mut KvCache) {
        self.drafters.iter_mut().for_each(|rated| rated.drafter.attach(cache));
    }

    fn slots_ahead(&self) -> usize {
        self.drafters.iter().map(|rated| rated.drafter.slots_ahead()).max().unwrap_or(0)
    }

    /// One that fails is passed over.
    fn computed(&mut self, computed: &mut Computed<'_>) -> Result<(), DraftError> {
        let errors = self.drafters.iter_mut().filter_map(|rated| rated.drafter.computed(computed).err());
        errors.last().map_or(Ok(()), Err)
    }

    fn judged(&mut self, key: Key, verdict: &Verdict<'_>) {
        if let Some(&drafter) = self.taken.get(&key) {
            self.drafters[drafter].drafter.judged(key, verdict);
        }
    }

    fn heard(&mut self, key: Key, says: &[(usize, u32)]) {
        if let Some(&drafter) = self.taken.get(&key) {
            self.drafters[drafter].drafter.heard(key, says);
        }
    }

    fn finished(&mut self, key: Key, tokens: &[u32], prompt: usize) {
        self.taken.remove(&key);
        self.answer.add(tokens.len().saturating_sub(prompt) as f64);
        for rated in &mut self.drafters {
            rated.finished(key, tokens, prompt);
        }
    }
}

#[cfg(test)]
mod tests;
