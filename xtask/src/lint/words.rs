//! Words: names that the field has a better one for.
//!
//! Looked at are the names of modules, types and functions. What users see (options, variables,
//! counters) is text, and stays.

use super::report::Report;
use super::source::{Source, Tree};

const RULE: &str = "words";

/// What an old name is refused as.
#[derive(Clone, Copy, PartialEq, Eq)]
enum As {
    Module,
    Type,
    Function,
}

use As::{Function, Module, Type};

/// (refused, the field's word, as what). Where a name means something else elsewhere, it is written
/// with the beginning of the paths in which it is refused: `path: name`.
const WORDS: &[(&str, &str, &[As])] = &[
    // The fast path.
    ("gaspi-core/: inside", "fast_path", &[Module]),
    ("Inside", "FastPath", &[Type]),
    ("swift", "fast_path", &[Module, Function]),
    ("swiftly", "try_fast", &[Module, Function]),
    ("run_swiftly", "try_fast", &[Function]),
    ("slowly", "slow_path", &[Module, Function]),
    ("move_slowly", "put or get of the transport", &[Function]),
    ("put_remotely", "put of the transport", &[Function]),
    // Transports.
    ("fabric", "transport", &[Module]),
    ("mirror", "remote_arrivals", &[Module, Function]),
    ("Mirror", "RemoteArrivals", &[Type]),
    ("Seat", "RemoteArrivals", &[Type]),
    ("NodeArea", "SharedArea", &[Type]),
    ("said", "resend", &[Module]),
    ("Said", "ResendBuffer", &[Type]),
    ("say_again", "resend", &[Function]),
    ("Peers", "EndpointTable", &[Type]),
    ("drive", "receive", &[Module]),
    ("driving", "caller progress", &[Module]),
    ("gaspi-core/src/transport/: serve", "handlers", &[Module]),
    ("gaspi-core/: owe", "delay_acknowledgement", &[Function]),
    ("gaspi-core/: pay", "acknowledge", &[Function]),
    ("gaspi-core/: rides", "piggybacked", &[Function]),
    ("losses", "connection_epoch", &[Module]),
    ("Vain", "Stale", &[Type]),
    ("Landing", "GetTarget", &[Type]),
    ("Trial", "Attempt", &[Type]),
    ("trial", "attempt", &[Module]),
    ("gaspi-core/: Aim", "Purpose", &[Type]),
    ("Stranger", "Unauthenticated", &[Type]),
    ("gaspi-core/: put_back", "rejoin_epoll", &[Function]),
    ("release_held", "flush", &[Function]),
    // Control and channel.
    ("gaspi-core/: agreement", "control", &[Module]),
    ("gaspi-core/src/control: Relay", "Leaders", &[Type]),
    ("loans", "zero_copy", &[Module]),
    ("gaspi-core/: lend", "begin_send", &[Function]),
    ("borrowers", "in_flight", &[Module, Function]),
    ("Stays", "Lifetime", &[Type]),
    ("expected", "posted_receives", &[Module]),
    ("Spot", "PostedReceive", &[Type]),
    ("gaspi-core/: landed", "received", &[Function]),
    ("geometry", "layout", &[Module]),
    ("opening", "setup", &[Module]),
    ("ranges", "free_list", &[Module]),
    // Diagnostics.
    ("survey", "diagnostics", &[Module, Function]),
    ("Finding", "Check", &[Type]),
    ("fingerprint", "signature", &[Module, Function]),
    ("Fingerprint", "Signature", &[Type]),
    // Bootstrap.
    ("gaspi-core/: meeting", "exchange", &[Module]),
    ("hosting", "server_state", &[Module]),
    ("Hosting", "ServerState", &[Type]),
    ("gathering", "client", &[Module]),
    ("Gathering", "Client", &[Type]),
    ("seeker", "discovery", &[Module]),
    ("Seeker", "Discovery", &[Type]),
    ("roster", "start_status", &[Module]),
    ("Roster", "StartStatus", &[Type]),
    ("envelope", "relay_protocol", &[Module]),
    ("Envelope", "RelayMessage", &[Type]),
    ("bell", "wakeup", &[Module, Function]),
    ("doorbell", "wakeup", &[Module, Function]),
    ("Doorbell", "Wakeup", &[Type]),
    ("joining", "init", &[Module]),
    ("Joining", "PendingInit", &[Type]),
    ("gaspi-core/: Detour", "TestProxy", &[Type]),
    // Collectives.
    ("gaspi-collectives/: Detour", "FallbackPlan", &[Type]),
    ("Desk", "GroupContext", &[Type]),
    ("Signs", "a lookup table", &[Type]),
    ("station", "executor", &[Module]),
    ("Station", "Executor", &[Type]),
    ("failing", "abort", &[Module]),
    ("gaspi-: linger", "quiesce", &[Module, Function]),
    ("Rouser", "WakeOnDrop", &[Type]),
    ("Underway", "BlockingCall", &[Type]),
    ("Brief", "SimpleRequest", &[Type]),
    ("once", "single_phase", &[Module]),
    ("apart", "pack, or direct poll", &[Module]),
    ("gaspi-collectives/: Kept", "PlanCache", &[Type]),
    ("Caution", "AgreementGuard", &[Type]),
    ("whereabouts", "buffer_location", &[Module, Function]),
    ("gaspi-collectives/src/: Way", "PeerAccess", &[Type]),
    ("Tally", "Counters", &[Type]),
    ("choice", "select", &[Module]),
    ("gaspi-collectives/src/lib.rs: lines", "standard_allreduce", &[Module]),
    // Tools.
    ("crew", "local_ranks", &[Module]),
    ("Crew", "LocalRanks", &[Type]),
    ("surroundings", "environment", &[Module]),
    ("Surroundings", "Environment", &[Type]),
    ("lifeline", "ssh_liveness", &[Module]),
    ("Lifeline", "SshLiveness", &[Type]),
    ("merging", "host_dedup", &[Module]),
    ("far_side", "remote_agent", &[Module]),
    ("beside", "baseline", &[Module]),
];

pub(super) fn check(tree: &Tree, report: &mut Report) {
    report.rule(RULE);
    for file in tree.rust() {
        for index in 0..file.tokens.len() {
            let Some(what) = defined(file, index) else { continue };
            let name = file.at(index + 1);
            let refused = WORDS.iter().find(|(old, _, kinds)| {
                let (place, old) = old.split_once(": ").unwrap_or(("", old));
                old == name && file.path.starts_with(place) && kinds.contains(&what)
            });
            if let Some((_, new, _)) = refused {
                let what = format!("`{name}`; say {new}");
                report.add(RULE, &file.path, file.line(index), &what);
            }
        }
    }
}

/// What the token with this index defines, if it defines anything.
fn defined(file: &Source, index: usize) -> Option<As> {
    let what = match file.at(index) {
        "mod" => Module,
        "struct" | "enum" | "trait" | "type" | "union" => Type,
        "fn" => Function,
        _ => return None,
    };
    file.is_word(index + 1).then_some(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        Report::of(|report| check(&Tree::of(&[("a.rs", text)]), report))
    }

    #[test]
    fn old_words_are_refused() {
        assert_eq!(found("\npub struct Mirror;"), ["a.rs:2: `Mirror`; say RemoteArrivals"]);
        assert_eq!(found("enum Crew { A }"), ["a.rs:1: `Crew`; say LocalRanks"]);
        assert_eq!(found("mod crew;"), ["a.rs:1: `crew`; say local_ranks"]);
        assert_eq!(found("fn say_again<T>() {}"), ["a.rs:1: `say_again`; say resend"]);
    }

    #[test]
    fn a_word_of_one_crate_is_free_in_another() {
        let files = [("gaspi-core/a.rs", "mod agreement;"), ("tools/a.rs", "mod agreement;")];
        let found = Report::of(|report| check(&Tree::of(&files), report));
        assert_eq!(found, ["gaspi-core/a.rs:1: `agreement`; say control"]);
    }

    #[test]
    fn other_uses_of_a_word_are_nobodys_business() {
        assert!(found("// struct Mirror\nfn f() { let once = \"mod crew\"; }").is_empty());
        assert!(found("fn lines() {} fn once() {} struct MirrorImage;").is_empty());
    }

    #[test]
    fn no_word_is_both_old_and_new() {
        for (old, new, _) in WORDS {
            assert_ne!(old, new);
        }
        let mut names: Vec<&str> = WORDS.iter().map(|word| word.0).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "a word is listed twice");
    }
}
