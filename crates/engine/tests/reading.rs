//! What waits to be read is read in order, once, with the hidden states that the target had there, and before others can find
//! the page that it is in.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use draft::{Ask, Computed, DraftError, Drafter, Key, Round, Silence};
use engine::batch::Speculation;
use engine::{Drafting, Engine, EngineOptions, SamplingParams};
use kernels::PAGE;
use model::Tap;
use spec::{CostCurve, Proposal};
use testkit::{byte_tokenizer, tiny_llama};

/// Hidden states by position.
type Read = Arc<Mutex<BTreeMap<usize, Vec<f32>>>>;

/// Reads when it is told to, or when it is asked in every `asks`-th round, and drafts what it knows will come.
struct Reader {
    read: Read,
    answer: Vec<u32>,
    /// How many seem to read: with two, nothing waits.
    readers: usize,
    asks: usize,
    rounds: usize,
}

impl Reader {
    fn note(&self, start: usize, states: &[f32], rows: usize) {
        let mut read = self.read.lock().unwrap();
        for (position, state) in (start..start + rows).zip(states.chunks_exact(states.len() / rows)) {
            let before = read.insert(position, state.to_vec());
            assert!(before.is_none(), "position {position} is read twice");
            assert_eq!(read.len(), position + 1, "position {position} is read before one below it");
        }
    }
}

impl Drafter for Reader {
    fn name(&self) -> &'static str {
        "reader"
    }

    fn taps(&self) -> Vec<Tap> {
        vec![Tap::Layer(0)]
    }

    fn readers(&self) -> usize {
        self.readers
    }

    fn computed(&mut self, computed: &mut Computed<'_>) -> Result<(), DraftError> {
        let (mut first, rows) = (0, computed.batch.iter().map(|segment| segment.tokens.len()).sum::<usize>());
        let states = computed.taps[0].1;
        let width = states.len() / rows;
        for segment in computed.batch {
            let rows = segment.tokens.len();
            self.note(segment.start, &states[first * width..(first + rows) * width], rows);
            first += rows;
        }
        Ok(())
    }

    fn propose(
        &mut self,
        round: &mut Round<'_>,
        asks: &[Ask<'_>],
    ) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        let [ask] = asks else { panic!("one request") };
        let full = (ask.tokens.len() - 1) / PAGE * PAGE;
        assert!(self.read.lock().unwrap().len() >= full, "a full page was not read");
        self.rounds += 1;
        if self.rounds.is_multiple_of(self.asks)
            && let Some(rows) = round.unread.take(ask.key)
        {
            let positions = rows.positions();
            self.note(positions.start, &rows.states()[0], positions.len());
            assert_eq!(positions.end, ask.tokens.len() - 1);
        }
        let said = ask.tokens.len() - ask.prompt;
        let mut proposal = Proposal::new(ask.anchor());
        // From none to seven drafts, of which the last is wrong.
        let count = (self.rounds * 5 % 8).min(ask.max_drafts).min(self.answer.len().saturating_sub(said));
        for at in 0..count {
            let wrong = u32::from(at + 1 == count);
            proposal.add_point(at, (self.answer[said + at] + wrong) % 256, 0.9).unwrap();
        }
        Ok(vec![if count == 0 { Err(Silence::NoMatch) } else { Ok(proposal) }])
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}

/// The answer, and what was read.
fn run(answer: Vec<u32>, readers: usize, asks: usize) -> (Vec<u32>, BTreeMap<usize, Vec<f32>>) {
    let read = Read::default();
    let reader = Reader { read: Arc::clone(&read), answer, readers, asks, rounds: 0 };
    let curve = CostCurve::new(&[1, 2], &[0], &[1e3, 1e3 * 1.000_001]).unwrap();
    let (model, pool) = tiny_llama(1);
    let speculation = Some(Speculation::new(Box::new(reader), 8, curve));
    let mut engine = Engine::new(model, byte_tokenizer(), pool, EngineOptions::default(), speculation);
    let params = SamplingParams { max_tokens: Some(90), ignore_eos: true, ..SamplingParams::default() };
    let (prompt, mut tokens): (Vec<u32>, Vec<u32>) = ((0..37).map(|at| at * at * 7 % 50).collect(), Vec::new());
    let taken = engine.generate(&prompt, params, &Drafting::default(), |delta| {
        tokens.push(delta.token);
        ControlFlow::Continue(())
    });
    taken.unwrap();
    drop(engine);
    let read = std::mem::take(&mut *read.lock().unwrap());
    (tokens, read)
}

#[test]
fn every_row_is_read_once_with_its_own_hidden_state() {
    // Without drafts and with nothing that waits.
    let (answer, plain) = run(Vec::new(), 2, usize::MAX);
    assert!(answer.len() == 90 && plain.len() >= 37 + 89);
    for asks in [1, 3, usize::MAX] {
        let (tokens, read) = run(answer.clone(), 1, asks);
        assert_eq!(tokens, answer);
        assert!(read.len() >= (37 + 89) / PAGE * PAGE, "{} rows were read", read.len());
        assert!(read.iter().all(|(position, state)| state == &plain[position]), "asked in every {asks}th round");
    }
}
