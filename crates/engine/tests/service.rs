//! A service as its callers meet it: events, limits, cancelling, failing, stopping.

use std::sync::mpsc::{self, Receiver, Sender};

use engine::batch::{Event, Handle, RequestId, Service, ServiceOptions, Sink, Submission, SubmitError};
use engine::{Drafting, FinishReason, RequestError, SamplingParams, Usage};
use kernels::{KvFormat, PAGE};
use testkit::{byte_tokenizer, tiny_llama};

fn service(options: ServiceOptions) -> Service {
    let (model, pool) = tiny_llama(1);
    Service::start(model, byte_tokenizer(), pool, options, None)
}

/// A request of `prompt` tokens that goes on for `outputs`, or to the end of the context.
fn request(prompt: usize, outputs: Option<usize>) -> Submission {
    let prompt = (0..prompt).map(|p| (p * 31 + p / 7) as u32 % 250).collect();
    let params = SamplingParams { temperature: 1.0, max_tokens: outputs, ignore_eos: true, ..Default::default() };
    Submission { prompt, params, n: 1, cache_salt: None, priority: 0, drafting: Drafting::default() }
}

/// A sink that passes events on under a name.
fn sink(name: &'static str, events: &Sender<(&'static str, Event)>) -> Sink {
    let events = events.clone();
    Box::new(move |event| drop(events.send((name, event))))
}

/// Submits a request and gives its events to the last.
fn answer(handle: &Handle, submission: Submission) -> Vec<Event> {
    let (events, inbox) = mpsc::channel();
    handle.submit(submission, sink("", &events)).unwrap();
    drop(events);
    inbox.into_iter().map(|(_, event)| event).collect()
}

fn ends(events: &[Event]) -> Vec<&Event> {
    events.iter().filter(|event| !matches!(event, Event::Delta { .. })).collect()
}

fn usage_of(events: &[Event]) -> Usage {
    match events.last() {
        Some(Event::Finished { usage, .. }) => *usage,
        other => panic!("{other:?}"),
    }
}

/// Submits a request whose sink holds up the engine at its first event until the sender is used or dropped.
fn plug(handle: &Handle, events: &Sender<(&'static str, Event)>) -> Sender<()> {
    let (started, has_started) = mpsc::channel();
    let (release, released): (Sender<()>, Receiver<()>) = mpsc::channel();
    let mut tell = sink("plug", events);
    let hold: Sink = Box::new(move |event| {
        let _ = (started.send(()), released.recv());
        tell(event);
    });
    handle.submit(request(5, Some(2)), hold).unwrap();
    has_started.recv().unwrap();
    release
}

#[test]
fn a_cancelled_request_ends_before_the_next_step_and_its_pages_are_free() {
    let service = service(ServiceOptions::default());
    let handle = service.handle();
    let (events, inbox) = mpsc::channel();
    let (name, own_name) = mpsc::channel::<RequestId>();
    let (canceller, mut left, mut id) = (handle.clone(), 5, None);
    let cancel: Sink = Box::new(move |event| {
        left -= i32::from(matches!(event, Event::Delta { .. }));
        let id = *id.get_or_insert_with(|| own_name.recv().unwrap());
        if left == 0 {
            canceller.cancel(id);
        }
        events.send(event).unwrap();
    });
    name.send(handle.submit(request(60, None), cancel).unwrap()).unwrap();
    let events: Vec<Event> = inbox.into_iter().collect();
    let usage = Usage { prompt_tokens: 60, output_tokens: 5, cached_tokens: 0, ..Usage::default() };
    assert_eq!(events.len(), 6);
    assert_eq!(events[5], Event::Finished { choice: 0, reason: FinishReason::Cancelled, usage });
    assert_eq!(handle.stats().kv_pages_used, 0);
}

#[test]
fn who_waits_can_be_cancelled_and_makes_room_in_the_queue() {
    let service = service(ServiceOptions { max_running: 1, max_waiting: 2, ..Default::default() });
    let handle = service.handle();
    let (events, inbox) = mpsc::channel();
    let release = plug(&handle, &events);
    let first = handle.submit(request(5, Some(2)), sink("first", &events)).unwrap();
    handle.submit(request(5, Some(2)), sink("second", &events)).unwrap();
    let refused = handle.submit(request(5, Some(2)), sink("third", &events));
    assert_eq!(refused, Err(SubmitError::QueueFull));
    assert_eq!(handle.stats().waiting, 2);
    handle.cancel(first);
    drop((release, events));
    let events: Vec<_> = inbox.into_iter().collect();
    let usage = Usage { prompt_tokens: 5, ..Default::default() };
    let cancelled = Event::Finished { choice: 0, reason: FinishReason::Cancelled, usage };
    assert!(events.contains(&("first", cancelled)));
    assert_eq!(events.iter().filter(|(name, _)| *name == "second").count(), 3);
    assert!(!events.iter().any(|(name, _)| *name == "third"));
    assert_eq!(ends(&answer(&handle, request(5, Some(2)))).len(), 1);
}

#[test]
fn higher_priority_begins_first_and_equals_in_order() {
    let service = service(ServiceOptions { max_running: 1, ..Default::default() });
    let handle = service.handle();
    let (events, inbox) = mpsc::channel();
    let release = plug(&handle, &events);
    for (name, priority) in [("low", -1), ("early", 0), ("late", 0), ("high", 9)] {
        handle.submit(Submission { priority, ..request(5, Some(1)) }, sink(name, &events)).unwrap();
    }
    drop((release, events));
    let order: Vec<_> = inbox.into_iter().filter(|(_, event)| !matches!(event, Event::Delta { .. })).collect();
    let order: Vec<_> = order.into_iter().map(|(name, _)| name).collect();
    assert_eq!(order, ["plug", "high", "early", "late", "low"]);
}

#[test]
fn shutdown_finishes_what_was_taken_and_takes_no_more() {
    let service = service(ServiceOptions { max_running: 2, ..Default::default() });
    let handle = service.handle();
    let (events, inbox) = mpsc::channel();
    for _ in 0..5 {
        handle.submit(request(40, Some(20)), sink("", &events)).unwrap();
    }
    service.shutdown();
    let events: Vec<Event> = inbox.try_iter().map(|(_, event)| event).collect();
    assert_eq!(events.len(), 5 * 21);
    let finished = |event: &&Event| matches!(event, Event::Finished { reason: FinishReason::Length, .. });
    assert_eq!(events.iter().filter(finished).count(), 5);
    assert_eq!(handle.submit(request(5, None), Box::new(|_| ())), Err(SubmitError::ShuttingDown));
}

#[test]
fn a_dropped_service_cancels_what_it_has() {
    let service = service(ServiceOptions { max_running: 1, max_waiting: 4, ..Default::default() });
    let handle = service.handle();
    let (events, inbox) = mpsc::channel();
    let release = plug(&handle, &events);
    for _ in 0..3 {
        handle.submit(request(40, None), sink("", &events)).unwrap();
    }
    let dropping = std::thread::spawn(move || drop(service));
    while handle.submit(request(1, Some(1)), Box::new(|_| ())) != Err(SubmitError::ShuttingDown) {
        std::thread::yield_now();
    }
    drop((release, events));
    dropping.join().unwrap();
    let ends = inbox.iter().filter(|(_, event)| matches!(event, Event::Finished { .. })).count();
    assert_eq!(ends, 4);
}

#[test]
fn what_can_never_run_is_refused_at_once() {
    let (model, _) = tiny_llama(1);
    let kv_bytes = 4 * model.kv_layout(KvFormat::F16).bytes_per_page();
    let service = service(ServiceOptions { kv_bytes, max_running: 4, ..Default::default() });
    let handle = service.handle();
    let refused = |submission| match handle.submit(submission, Box::new(|_| panic!("an event came"))) {
        Err(SubmitError::Invalid(error)) => error,
        other => panic!("{other:?}"),
    };
    let (prompt, context) = (4 * PAGE, 4 * PAGE);
    assert_eq!(refused(request(prompt, None)), RequestError::PromptTooLong { prompt, context });
    assert_eq!(refused(request(0, None)), RequestError::EmptyPrompt);
    assert_eq!(refused(Submission { n: 0, ..request(5, None) }), RequestError::Choices { n: 0, max: 4 });
    assert_eq!(refused(Submission { n: 5, ..request(5, None) }), RequestError::Choices { n: 5, max: 4 });
    // The largest that fits runs to the end of the pool.
    assert_eq!(usage_of(&answer(&handle, request(prompt - 1, None))).output_tokens, 1);
    assert_eq!(ends(&answer(&handle, Submission { n: 4, ..request(40, None) })).len(), 4);
    assert_eq!(handle.stats().kv_pages_used, 0);
}

#[test]
fn a_request_without_a_possible_token_fails_alone() {
    let service = service(ServiceOptions::default());
    let handle = service.handle();
    let (events, inbox) = mpsc::channel();
    let release = plug(&handle, &events);
    let mut hopeless = request(20, None);
    (hopeless.params.min_tokens, hopeless.params.stop_tokens) = (1, (0..256).collect());
    handle.submit(hopeless, sink("hopeless", &events)).unwrap();
    handle.submit(request(30, Some(10)), sink("other", &events)).unwrap();
    drop((release, events));
    let events: Vec<_> = inbox.into_iter().collect();
    let of = |name| events.iter().filter(move |(of, _)| *of == name).map(|(_, event)| event).collect::<Vec<_>>();
    let [Event::Failed { choice: 0, message }] = of("hopeless")[..] else { panic!("{:?}", of("hopeless")) };
    assert!(message.contains("none of the 256 tokens is allowed"), "{message}");
    assert_eq!((of("plug").len(), of("other").len()), (3, 11));
    assert_eq!(handle.stats().kv_pages_used, 0);
}

#[test]
fn a_sink_that_panics_loses_its_request_and_nobody_elses() {
    let service = service(ServiceOptions::default());
    let handle = service.handle();
    let (gone, is_gone) = mpsc::channel::<()>();
    let panics: Sink = Box::new(move |_| {
        let _held = &gone;
        panic!("of this sink")
    });
    handle.submit(Submission { n: 2, ..request(20, None) }, panics).unwrap();
    assert!(is_gone.recv().is_err(), "the sink is dropped");
    assert_eq!(answer(&handle, request(20, Some(10))).len(), 11);
    assert_eq!((handle.stats().kv_pages_used, handle.stats().running), (0, 0));
}

#[test]
fn a_prefix_is_computed_once_but_not_across_salts() {
    let service = service(ServiceOptions::default());
    let handle = service.handle();
    let salted = |salt: &str| Submission { cache_salt: Some(salt.into()), ..request(100, Some(3)) };
    let cached = |submission| usage_of(&answer(&handle, submission)).cached_tokens;
    assert_eq!(cached(request(100, Some(3))), 0);
    assert_eq!(cached(request(100, Some(3))), 96);
    assert_eq!(cached(request(96, Some(3))), 80, "the last token's logits are wanted");
    assert_eq!(cached(salted("a")), 0);
    assert_eq!(cached(salted("b")), 0);
    assert_eq!(cached(salted("a")), 96);
    assert_eq!(handle.stats().cached_prompt_tokens, 96 + 80 + 96);
}

#[test]
fn choices_share_the_computation_of_their_prompt() {
    let service = service(ServiceOptions::default());
    let handle = service.handle();
    let events = answer(&handle, Submission { n: 4, ..request(200, Some(10)) });
    assert_eq!((events.len(), ends(&events).len()), (44, 4));
    assert_eq!(handle.stats().rows, 200 + 4 * 9);
    assert_eq!((handle.stats().prompt_tokens, handle.stats().generated_tokens), (200, 40));
}

#[test]
fn a_long_prompt_holds_up_no_decode() {
    let service = service(ServiceOptions { row_budget: 16, ..Default::default() });
    let handle = service.handle();
    let (events, inbox) = mpsc::channel();
    let (submitter, late, mut tell) = (handle.clone(), sink("late", &events), sink("first", &events));
    let mut late = Some(late);
    let first: Sink = Box::new(move |event| {
        if let Some(late) = late.take() {
            submitter.submit(request(300, Some(1)), late).unwrap();
        }
        tell(event);
    });
    handle.submit(request(5, Some(100)), first).unwrap();
    drop(events);
    let before = inbox.into_iter().take_while(|(name, _)| *name == "first").count();
    // Each step gives the other a token. The prompt has what is worth 15 rows at its beginning.
    let (mut computed, mut steps) = (0, 0);
    while computed < 300 {
        computed += 15 * 1024 / (1024 + computed);
        steps += 1;
    }
    assert_eq!(before, 1 + steps);
}
