//! What is said about each port: its state, whether it is used, and why.

use super::select::{Candidate, Chosen, DeviceFacts, NoDevice, PortFacts, Verdict, Wanted};
use super::select::{GidEntry, best_gid};
use super::subnet::Favoured;
use std::fmt;

/// A port, whether it is used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortRow {
    /// Device and port.
    pub(crate) name: String,
    /// Its state, its link layer, and its GID.
    pub(crate) state: String,
    pub(crate) used: bool,
    /// Whether it could be used.
    pub(crate) usable: bool,
    pub(crate) reason: String,
}

impl fmt::Display for PortRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = if self.used { "used" } else { "not used" };
        let colon = if self.state.is_empty() { "" } else { ": " };
        write!(f, "{}{colon}{}; {used}: {}", self.name, self.state, self.reason)
    }
}

/// A row for each port that was found, of which `equal` are as good as the chosen one.
pub(super) fn of(
    devices: &[DeviceFacts],
    verdicts: &[Verdict],
    chosen: &Result<Chosen, NoDevice>,
    (turn, equal): (usize, usize),
    wanted: Wanted<'_>,
) -> Vec<PortRow> {
    let nth = wanted.place.nth;
    let usable = verdicts.iter().filter(|verdict| verdict.outcome.is_ok()).count();
    let row = |verdict: &Verdict| {
        let device = &devices[verdict.device];
        let port = verdict.port.map(|at| &device.ports[at]);
        let is_it =
            |chosen: &Chosen| chosen.device == verdict.device && Some(chosen.port) == verdict.port;
        let used = chosen.as_ref().is_ok_and(is_it);
        let reason = match &verdict.outcome {
            Err(refusal) => refusal.reason().to_owned(),
            Ok(_) if used && usable == 1 => "the only port that can be used".to_owned(),
            Ok(candidate) if used => {
                let mut reason = best_of(device, candidate);
                if equal > 1 {
                    reason += &format!(
                        "; number {} of {equal} equal ports, for rank {nth} of the node",
                        turn + 1
                    );
                }
                reason
            }
            Ok(candidate) => match chosen {
                Ok(chosen) => not_chosen(devices, verdict, candidate, (chosen, wanted.favoured)),
                Err(error) => error.to_string(),
            },
        };
        let gid = verdict.outcome.as_ref().ok().map(|candidate| candidate.gid);
        let name = match port {
            Some(port) => format!("{}, port {}", device.name, port.number),
            None => device.name.clone(),
        };
        let state = port.map_or_else(String::new, |port| state(port, gid));
        PortRow { name, state, used, usable: verdict.outcome.is_ok(), reason }
    };
    verdicts.iter().map(row).collect()
}

/// A port in words.
fn state(port: &PortFacts, gid: Option<GidEntry>) -> String {
    let state = if port.active { "active" } else { "not active" };
    let layer = if port.ethernet { "Ethernet" } else { "InfiniBand" };
    // That of a port which is not used is the one that it would be reached by.
    match gid.or_else(|| best_gid(&port.gids, None)) {
        Some(gid) => format!("{state}, {layer}, GID {gid}"),
        None => format!("{state}, {layer}, no GID"),
    }
}

fn best_of(device: &DeviceFacts, candidate: &Candidate) -> String {
    let node = device.numa_node.map_or(String::new(), |node| format!(" (NUMA node {node})"));
    match (&device.near_cores, candidate.far) {
        (_, true) => format!("no device is near the cores of this rank{node}"),
        (Some(_), false) => format!("near the cores of this rank{node}"),
        (None, false) => "the first of the best".to_owned(),
    }
}

fn not_chosen(
    devices: &[DeviceFacts],
    verdict: &Verdict,
    candidate: &Candidate,
    (chosen, favoured): (&Chosen, &Favoured),
) -> String {
    let best = &devices[chosen.device].ports[chosen.port];
    let Some(port) = verdict.port.map(|at| &devices[verdict.device].ports[at]) else {
        return String::new();
    };
    let better = format!("{}, port {}", devices[chosen.device].name, best.number);
    let node = devices[verdict.device].numa_node;
    let node = node.map_or(String::new(), |node| format!(" (NUMA node {node})"));
    if candidate.inactive && best.active {
        format!("not active, as {better} is")
    } else if port.ethernet && !best.ethernet {
        format!("InfiniBand comes before it: {better}")
    } else if let Some((own, used)) = candidate
        .subnet
        .zip(chosen.subnet)
        .filter(|(own, used)| favoured.place_of(Some(*own)) > favoured.place_of(Some(*used)))
    {
        format!(
            "in network {own}, {better} in {used}, which the ranks of the job favour{}",
            name_both(port)
        )
    } else if candidate.far {
        format!("far from the cores of this rank{node}: {better} is used")
    } else if port.rate < best.rate {
        format!("slower than {better}")
    } else if let Some((own, used)) = candidate.subnet.zip(chosen.subnet).filter(|(a, b)| a != b) {
        format!("in network {own}, {better} in {used}: this rank uses that{}", name_both(port))
    } else {
        format!("as good as {better}, which this rank uses")
    }
}

/// What can be done about a port of another network: nothing, where those never reach each other.
fn name_both(port: &PortFacts) -> &'static str {
    if port.ethernet { "; name both with GASPI_IB_DEVICE if they reach each other" } else { "" }
}
