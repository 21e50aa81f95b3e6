use std::num::NonZeroUsize;

use proptest::prelude::*;
use spec::{Distribution, Drawn};

use super::*;
use crate::{Choose, Chosen, Greedy, Unread};

const VOCAB: usize = 256;

struct Tiny {
    model: Arc<Model>,
    pool: Pool,
}

impl Tiny {
    fn new(name: &str) -> Self {
        let pool = Pool::new(NonZeroUsize::MIN);
        Self { model: Arc::new(testkit::target(name, &pool)), pool }
    }

    fn drafter(&self, options: DraftModelOptions) -> DraftModel {
        let curve = CostCurve::new(&[1], &[0], &[0.001]).unwrap();
        DraftModel::new(Arc::clone(&self.model), curve, options)
    }

    /// What is proposed when a step costs any time, so that every draft pays.
    fn propose(&self, drafter: &mut DraftModel, asks: &[Ask<'_>]) -> Vec<Result<Proposal, Silence>> {
        let mut cache = crate::alone::cache();
        let mut round = Round {
            pool: &self.pool,
            cache: &mut cache,
            step_seconds: f64::INFINITY,
            row_seconds: 0.0,
            checks_all: false,
            unread: &mut Unread::default(),
        };
        let answers = drafter.propose(&mut round, asks).unwrap();
        drafter.requests.check();
        answers
    }

    /// What a draft model says that has never seen the request.
    fn fresh(&self, ask: Ask<'_>) -> Result<Proposal, Silence> {
        self.alone(ask, OPTIONS.pages)
    }

    /// The same with so many pages.
    fn alone(&self, ask: Ask<'_>, pages: usize) -> Result<Proposal, Silence> {
        self.propose(&mut self.drafter(DraftModelOptions { pages, ..OPTIONS }), &[ask]).remove(0)
    }
}

const OPTIONS: DraftModelOptions = DraftModelOptions {
    name: "model",
    vocab: VOCAB,
    kv_format: KvFormat::F16,
    pages: 64,
    read_ahead: 1000,
    min_survival: 0.0,
};

fn ask(request: u64, tokens: &[u32], max_drafts: usize) -> Ask<'_> {
    let key = Key { request, choice: 0 };
    Ask {
        key,
        tokens,
        prompt: 1,
        predicted: &[],
        max_drafts,
        remaining: 64,
        choose: &Greedy,
        sequence: &crate::alone::NOWHERE,
    }
}

fn text(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (seed * 31 + i * i * 7 + i) % VOCAB as u32).collect()
}

fn drafts(answer: &Result<Proposal, Silence>) -> &[u32] {
    answer.as_ref().map_or(&[], |proposal| &proposal.tree().tokens()[1..])
}

/// What happens to a request in a round.
#[derive(Debug, Clone)]
struct Turn {
    request: usize,
    max_drafts: usize,
    /// So many drafts are committed, if there are as many.
    accepted: usize,
    /// Then this token, or the next draft.
    token: Option<u32>,
    /// Then it ends, and another one begins with a prompt of so many tokens.
    ends: Option<usize>,
}

fn turn() -> impl Strategy<Value = Turn> {
    let token = prop_oneof![Just(None), (0..VOCAB as u32).prop_map(Some)];
    let ends = prop_oneof![9 => Just(None), 1 => (1_usize..60).prop_map(Some)];
    (0_usize..4, 1_usize..7, 0_usize..7, token, ends).prop_map(|(request, max_drafts, accepted, token, ends)| Turn {
        request,
        max_drafts,
        accepted,
        token,
        ends,
    })
}

/// Lets requests take their turns, a few in every round, and compares all that is proposed with what a fresh model says.
/// Answers how often the drafter was behind.
fn play(tiny: &Tiny, options: DraftModelOptions, rounds: &[Vec<Turn>]) -> usize {
    let mut drafter = tiny.drafter(options);
    let mut texts: Vec<(u64, Vec<u32>)> = (0..4).map(|i| (i, text(i as u32, 5 + 13 * i as usize))).collect();
    let (mut next, mut behind) = (4, 0);
    for turns in rounds {
        let mut turns = turns.clone();
        turns.sort_by_key(|turn| turn.request);
        turns.dedup_by_key(|turn| turn.request);
        let asks: Vec<Ask<'_>> =
            turns.iter().map(|turn| ask(texts[turn.request].0, &texts[turn.request].1, turn.max_drafts)).collect();
        let answers = tiny.propose(&mut drafter, &asks);
        for (ask, answer) in asks.iter().zip(&answers) {
            match answer {
                Err(Silence::Behind) => behind += 1,
                answer => assert_eq!(answer, &tiny.alone(*ask, options.pages)),
            }
        }
        for (turn, answer) in turns.iter().zip(&answers) {
            let drafts = drafts(answer);
            let accepted = turn.accepted.min(drafts.len());
            let (request, text) = &mut texts[turn.request];
            text.extend(&drafts[..accepted]);
            text.push(turn.token.or(drafts.get(accepted).copied()).unwrap_or(0));
            if let Some(len) = turn.ends {
                drafter.finished(Key { request: *request, choice: 0 }, text, 1);
                (*request, *text) = (next, self::text(next as u32, len));
                next += 1;
            }
        }
    }
    for (request, _) in texts {
        drafter.finished(Key { request, choice: 0 }, &[], 0);
    }
    assert_eq!(drafter.requests.count(), 0);
    drafter.requests.check();
    behind
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_round_is_as_from_a_fresh_prefill(rounds in prop::collection::vec(prop::collection::vec(turn(), 1..4), 1..12)) {
        prop_assert_eq!(play(&Tiny::new("llama"), OPTIONS, &rounds), 0);
    }

    #[test]
    fn too_few_pages_lose_nothing(
        pages in 3_usize..10,
        read_ahead in 0_usize..40,
        rounds in prop::collection::vec(prop::collection::vec(turn(), 1..4), 1..20),
    ) {
        let tiny = Tiny::new("mistral-window");
        play(&tiny, DraftModelOptions { pages, read_ahead, ..OPTIONS }, &rounds);
    }
}

#[test]
fn a_long_prompt_is_read_over_several_rounds() {
    let tiny = Tiny::new("llama");
    let mut drafter = tiny.drafter(DraftModelOptions { read_ahead: 64, ..OPTIONS });
    let (long, short) = (text(1, 300), text(2, 5));
    let mut rounds = 0;
    loop {
        let answers = tiny.propose(&mut drafter, &[ask(0, &long, 4), ask(1, &short, 4)]);
        assert_eq!(answers[1], tiny.fresh(ask(1, &short, 4)), "who has little to read does not wait");
        rounds += 1;
        match &answers[0] {
            Err(Silence::Behind) => {}
            answer => {
                assert_eq!(answer, &tiny.fresh(ask(0, &long, 4)));
                break;
            }
        }
    }
    // 64 tokens in each round, beside the 5 that are always read.
    assert_eq!(rounds, 5);
}

#[test]
fn a_request_past_the_context_is_left_out_alone() {
    let tiny = Tiny::new("llama");
    // 4 pages: 64 positions.
    let mut drafter = tiny.drafter(DraftModelOptions { pages: 4, ..OPTIONS });
    let long = text(1, 65);
    for (len, expected) in [(62, 3), (63, 2), (64, 1)] {
        let answer = tiny.propose(&mut drafter, &[ask(0, &long[..len], 6)]).remove(0);
        assert_eq!(drafts(&answer).len(), expected, "the last draft is not computed, and needs no position");
    }
    let short = text(2, 9);
    let answers = tiny.propose(&mut drafter, &[ask(0, &long, 6), ask(1, &short, 6)]);
    assert_eq!(answers[0], Err(Silence::Context));
    assert_eq!(answers[1], tiny.fresh(ask(1, &short, 6)));
    assert_eq!(drafter.requests.count(), 1, "its pages are given back");
}

#[test]
fn a_token_without_an_embedding_silences_its_request_alone() {
    let tiny = Tiny::new("llama");
    let mut drafter = tiny.drafter(OPTIONS);
    let short = text(2, 9);
    let answers = tiny.propose(&mut drafter, &[ask(0, &[1, 256, 3], 2), ask(1, &short, 2)]);
    assert_eq!(answers[0], Err(Silence::NoMatch));
    assert_eq!(answers[1], tiny.fresh(ask(1, &short, 2)));
}

#[test]
fn pages_are_taken_from_who_has_not_asked_for_longest() {
    let tiny = Tiny::new("llama");
    // Each of the texts needs 2 pages, and one to grow into.
    let mut drafter = tiny.drafter(DraftModelOptions { pages: 6, ..OPTIONS });
    let texts: Vec<Vec<u32>> = (0..4).map(|seed| text(seed, 30)).collect();
    let ask = |i: usize| ask(i as u64, &texts[i], 2);
    for i in [0, 1, 0] {
        assert_eq!(tiny.propose(&mut drafter, &[ask(i)])[0], tiny.fresh(ask(i)));
    }
    assert_eq!(tiny.propose(&mut drafter, &[ask(2)])[0], tiny.fresh(ask(2)));
    assert_eq!(tiny.propose(&mut drafter, &[ask(3)])[0], tiny.fresh(ask(3)));
    let known =
        |drafter: &DraftModel| [0, 1, 2, 3].map(|request| drafter.requests.computed(Key { request, choice: 0 }) > 0);
    assert_eq!(known(&drafter), [true, false, true, true]);
    assert_eq!(tiny.propose(&mut drafter, &[ask(1)])[0], tiny.fresh(ask(1)), "it is computed anew");
    assert_eq!(known(&drafter), [false, true, true, true]);
}

#[test]
fn those_who_ask_together_take_no_pages_from_each_other() {
    let tiny = Tiny::new("llama");
    let mut drafter = tiny.drafter(DraftModelOptions { pages: 6, ..OPTIONS });
    let texts: Vec<Vec<u32>> = (0..3).map(|seed| text(seed, 30)).collect();
    let asks: Vec<Ask<'_>> = (0..3).map(|i| ask(i as u64, &texts[i], 2)).collect();
    for _ in 0..3 {
        let answers = tiny.propose(&mut drafter, &asks);
        assert_eq!(answers[..2], [tiny.fresh(asks[0]), tiny.fresh(asks[1])]);
        assert_eq!(answers[2], Err(Silence::Behind));
    }
    drafter.finished(asks[0].key, &texts[0], 30);
    assert_eq!(tiny.propose(&mut drafter, &asks[1..])[1], tiny.fresh(asks[2]));
}

#[test]
fn a_chain_ends_where_more_would_not_pay() {
    let tiny = Tiny::new("llama");
    let tokens = text(1, 20);
    let whole = tiny.fresh(ask(0, &tokens, 6)).unwrap();
    assert_eq!(whole.tree().drafts(), 6);
    let confidences = &whole.tree().confidences()[1..];

    let mut doubtful =
        tiny.drafter(DraftModelOptions { min_survival: confidences[0] * confidences[1] * 1.01, ..OPTIONS });
    let answer = tiny.propose(&mut doubtful, &[ask(0, &tokens, 6)]).remove(0);
    assert_eq!(drafts(&answer), &whole.tree().tokens()[1..3], "the draft that sinks it is drafted already");

    let mut dear = tiny.drafter(OPTIONS);
    dear.curve = CostCurve::new(&[1], &[0], &[1e6]).unwrap();
    let mut cache = crate::alone::cache();
    let mut round = Round {
        pool: &tiny.pool,
        cache: &mut cache,
        step_seconds: 1.0,
        row_seconds: 0.0,
        checks_all: false,
        unread: &mut Unread::default(),
    };
    let answer = dear.propose(&mut round, &[ask(0, &tokens, 6)]).unwrap().remove(0);
    assert_eq!(drafts(&answer).len(), 1);
}

/// Draws from half of what the logits say is likeliest and half of token 7.
struct Draws;

impl Choose for Draws {
    fn choose(&self, drafts: &[u32], logits: &[f32]) -> Option<Chosen> {
        let best = Greedy.choose(drafts, logits)?.token;
        let token = if drafts.len().is_multiple_of(2) { 7 } else { best };
        let law = Distribution::sparse([(best, 0.5), (7, 0.5)]).ok()?;
        Some(Chosen { token, confidence: 0.25, law: Some(law) })
    }

    fn draws(&self) -> bool {
        true
    }
}

#[test]
fn what_it_would_come_to_follows_from_what_its_forwards_take() {
    let tiny = Tiny::new("llama");
    let outlook = |row: f64, steps: &Round<'_>, ask: &Ask<'_>| {
        let curve = CostCurve::new(&[1, 10], &[0], &[row, 2.0 * row]).unwrap();
        DraftModel::new(Arc::clone(&tiny.model), curve, OPTIONS).outlook(steps, 1, ask)
    };
    let mut cache = crate::alone::cache();
    let round = Round {
        pool: &tiny.pool,
        cache: &mut cache,
        step_seconds: 1.0,
        row_seconds: 0.1,
        checks_all: false,
        unread: &mut Unread::default(),
    };
    let tokens = text(1, 50);
    // Drafts save 0.65, 0.4625 and 0.322 of a step.
    let cheap = outlook(0.4, &round, &ask(0, &tokens, 8));
    assert!((cheap.gain - 1.1125).abs() < 1e-12 && (cheap.seconds - 0.8).abs() < 1e-12, "{cheap:?}");
    assert!((cheap.reading - 50.0 * 0.08).abs() < 1e-12, "{cheap:?}");
    let dear = outlook(1.0, &round, &ask(0, &tokens, 8));
    assert_eq!((dear.gain, dear.seconds), (0.0, 1.0), "the target itself would not pay");
    let one = outlook(0.4, &round, &ask(0, &tokens, 1));
    assert!((one.gain - 0.65).abs() < 1e-12 && one.seconds == 0.4, "no more is allowed");
}

#[test]
fn drawn_drafts_come_with_what_they_were_drawn_from() {
    let tiny = Tiny::new("llama");
    let tokens = text(1, 20);
    let ask = Ask { choose: &Draws, ..ask(0, &tokens, 2) };
    let answer = tiny.propose(&mut tiny.drafter(OPTIONS), &[ask]).remove(0).unwrap();
    let best = |tokens: &[u32]| drafts(&tiny.fresh(Ask { choose: &Greedy, tokens, max_drafts: 1, ..ask }))[0];
    let mut expected = Proposal::new(tokens[19]);
    let law = |best| Distribution::sparse([(best, 0.5), (7, 0.5)]).unwrap();
    expected.add_drawn(0, law(best(&tokens)), Drawn::Independently, &[7], &[0.25]).unwrap();
    let longer: Vec<u32> = tokens.iter().copied().chain([7]).collect();
    let second = best(&longer);
    expected.add_drawn(1, law(second), Drawn::Independently, &[second], &[0.25]).unwrap();
    assert_eq!(answer, expected);
}

#[test]
fn vocabularies_may_be_padded_otherwise() {
    let tiny = Tiny::new("llama");
    let tokens = text(1, 20);
    let wide = tiny.propose(&mut tiny.drafter(DraftModelOptions { vocab: 300, ..OPTIONS }), &[ask(0, &tokens, 4)]);
    assert_eq!(wide[0], tiny.fresh(ask(0, &tokens, 4)));
    let narrow = tiny.propose(&mut tiny.drafter(DraftModelOptions { vocab: 50, ..OPTIONS }), &[ask(0, &tokens, 4)]);
    assert!(drafts(&narrow[0]).iter().all(|&token| token < 50));
    assert_eq!(drafts(&narrow[0]).len(), 4);
}

#[test]
fn all_layers_kept_draft_what_the_model_says() {
    let tiny = Tiny::new("qwen3");
    let same = Tiny { model: Arc::new(tiny.model.without_layers(&[]).unwrap()), pool: Pool::new(NonZeroUsize::MIN) };
    let tokens = text(3, 40);
    assert_eq!(same.fresh(ask(0, &tokens, 8)), tiny.fresh(ask(0, &tokens, 8)));
}
