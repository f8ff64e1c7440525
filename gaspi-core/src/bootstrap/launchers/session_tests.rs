//! How long a process waits for its process manager to say who it is.

use super::*;
use std::time::Duration;

/// Ten times what a thread needs to answer.
const GUARD: Duration = Duration::from_secs(10);

fn identity() -> Identity {
    Identity { id: "j".to_owned(), rank: Rank(0), size: 1, local_rank: 0, one_machine: true }
}

#[test]
fn who_has_waited_in_vain_goes_on_with_the_same_question() {
    let (place, (release, released)) = (Place::new(), mpsc::channel::<()>());
    let open = move || {
        released.recv().expect("the test goes on");
        Ok((identity(), Box::new(Closed) as Box<dyn ProcessManager>))
    };
    let error = place.session(("a server", Deadline::Now), open).expect_err("no answer yet");
    assert!(error.is_timeout(), "{error}");
    assert!(error.to_string().contains("a server to tell"), "{error}");
    let again = || panic!("asked again");
    let short = Deadline::Never.at_most(Duration::from_millis(1));
    assert!(place.session(("a server", short), again).expect_err("still none").is_timeout());
    release.send(()).expect("the thread waits");
    let deadline = Deadline::Never.at_most(GUARD);
    let session = place.session(("a server", deadline), again).expect("an answer");
    assert_eq!(session.identity.id, "j");
    // From now on without waiting.
    let same = place.session(("a server", Deadline::Now), again).expect("known");
    assert!(Arc::ptr_eq(&same, &session));
}

#[test]
fn who_was_refused_asks_anew() {
    let place = Place::new();
    let refused = || Err(Error::Meeting { reason: "no server".to_owned() });
    let error = place.session(("a server", Deadline::Never), refused).expect_err("refused");
    assert!(error.to_string().contains("no server"), "{error}");
    let open = || Ok((identity(), Box::new(Closed) as Box<dyn ProcessManager>));
    place.session(("a server", Deadline::Never), open).expect("asked anew");
}

#[test]
fn a_thread_that_panics_is_no_answer() {
    let place = Place::new();
    let error = place.session(("a server", Deadline::Never), || panic!("as planned"));
    let error = error.expect_err("no answer");
    assert!(error.to_string().contains("has ended"), "{error}");
}
