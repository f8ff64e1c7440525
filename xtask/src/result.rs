//! How a command ends, and what it says to arguments that it does not know.

/// The result of a command; the text is shown to the person as it is.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// Refuses the first argument that a command does not know.
pub(crate) fn unknown(argument: &str) -> String {
    format!("unknown argument {argument:?}; `cargo xtask` lists what each command takes")
}
