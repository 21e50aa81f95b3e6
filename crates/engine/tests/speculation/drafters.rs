//! Drafters that cannot, fail, or propose what makes no sense: requests go on all the same.

use draft::{Ask, DraftError, Drafter, Key, Round, Silence};
use spec::Proposal;

use crate::support::*;

fn requests() -> Vec<engine::batch::Submission> {
    [12, 40, 70].map(|length| request(prompt(length), tokens(1.0, 30))).into()
}

#[test]
fn a_drafter_with_a_short_window_steps_aside_for_that_request_alone() {
    const WINDOW: usize = 60;
    let requests = requests();
    let want = plainly(&requests);
    let known = texts(&requests, &want);
    let (drafter, _) = scripted(move |ask| {
        let text = known.iter().find(|text| text.len() > ask.tokens.len() && text.starts_with(ask.tokens)).unwrap();
        let depth = WINDOW.checked_sub(ask.tokens.len() + 1).ok_or(Silence::Context)?.min(4);
        let next = &text[ask.tokens.len()..];
        let depth = depth.min(ask.max_drafts).min(next.len());
        if depth == 0 { Err(Silence::Context) } else { Ok(chain(ask, &next[..depth])) }
    });
    let (usages, _) = unchanged(&requests, drafter);
    let accepted: Vec<usize> = usages.iter().map(|usage| usage.accepted_tokens).collect();
    assert!(accepted[0] > accepted[1] && accepted[1] > 0 && accepted[2] == 0, "{accepted:?}");
}

struct Failing {
    calls: usize,
}

impl Drafter for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn propose(&mut self, _: &mut Round<'_>, asks: &[Ask<'_>]) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
        self.calls += 1;
        match self.calls % 2 {
            0 => Ok(asks.iter().map(|ask| Ok(chain(ask, &[1]))).collect()),
            _ => Err(DraftError { drafter: "failing", message: "on every other call".into() }),
        }
    }

    fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
}

#[test]
fn a_drafter_that_fails_now_and_then_costs_its_drafts_and_nothing_else() {
    unchanged(&requests(), Box::new(Failing { calls: 0 }));
}

#[test]
fn a_draft_that_is_no_token_is_not_checked() {
    // The fixture knows 256 tokens.
    for drafts in [&[300, 1][..], &[1, 256, 2], &[u32::MAX], &[1, 2, u32::MAX]] {
        let (want, got) = (plainly(&requests()), answers(options(), Some(stubborn_of(drafts)), &requests()).0);
        assert!(got.iter().map(|(answer, _)| answer).eq(&want), "{drafts:?}");
    }
}

fn stubborn_of(drafts: &[u32]) -> Box<dyn Drafter> {
    let drafts = drafts.to_vec();
    scripted(move |ask| Ok(chain(ask, &drafts))).0
}

#[test]
fn more_drafts_than_were_asked_for_are_cut() {
    let requests = requests();
    let want = plainly(&requests);
    let known = texts(&requests, &want);
    let (drafter, _) = scripted(move |ask| {
        let text = known.iter().find(|text| text.len() > ask.tokens.len() && text.starts_with(ask.tokens)).unwrap();
        // To the end of the answer and beyond.
        Ok(chain(ask, &[&text[ask.tokens.len()..], &[1, 2, 3, 4]].concat()))
    });
    let (usages, stats) = unchanged(&requests, drafter);
    assert!(usages.iter().all(|usage| usage.output_tokens == 30));
    assert_eq!(stats.drafts.checked_at[8..], [0; 8], "8 are allowed on a path");
}

#[test]
fn a_proposal_below_another_token_is_not_checked() {
    let (drafter, _) = scripted(|ask| {
        let mut proposal = Proposal::new((ask.anchor() + 1) % 250);
        proposal.add_point(0, 1, 0.99).unwrap();
        Ok(proposal)
    });
    let (want, (got, stats)) = (plainly(&requests()), answers(options(), Some(drafter), &requests()));
    assert!(got.iter().map(|(answer, _)| answer).eq(&want));
    assert_eq!(stats.drafts.checked, 0);
}

#[test]
fn too_few_answers_leave_the_others_without_drafts() {
    struct Curt;
    impl Drafter for Curt {
        fn name(&self) -> &'static str {
            "curt"
        }

        fn propose(
            &mut self,
            _: &mut Round<'_>,
            asks: &[Ask<'_>],
        ) -> Result<Vec<Result<Proposal, Silence>>, DraftError> {
            Ok(asks.iter().take(1).map(|ask| Ok(chain(ask, &[1, 2]))).collect())
        }

        fn finished(&mut self, _: Key, _: &[u32], _: usize) {}
    }
    unchanged(&requests(), Box::new(Curt));
}

#[test]
fn counters_stand_where_nothing_was_drafted() {
    let (drafter, log) = scripted(|_| Err(Silence::NoMatch));
    let (got, stats) = answers(options(), Some(drafter), &requests());
    assert!(got.iter().map(|(answer, _)| answer).eq(&plainly(&requests())));
    assert_eq!((stats.drafts.proposals, stats.drafts.checked, stats.drafts.accepted), (0, 0, 0));
    assert!(got.iter().all(|(_, usage)| usage.drafted_tokens == 0));
    assert!(!log.lock().unwrap().asks.is_empty());
}
