//! What build systems read to find an installed library: pkg-config files and the CMake package.

use std::path::Path;

use crate::tree::Tree;
use crate::{Result, names, workspace};

/// What libgaspi.a needs beside the C compiler's own libraries, in the order of the linker.
const STATIC_NEEDS: [&str; 7] = ["gcc_s", "util", "rt", "pthread", "m", "dl", "c"];

/// Puts the pkg-config files and the CMake package below `libdir` of the tree. `prefix` is where
/// the tree will lie when it is used.
pub(crate) fn describe(tree: &mut Tree, prefix: &Path, libdir: &str) -> Result<()> {
    for (name, library, version, about) in [
        (
            "gaspi",
            "gaspi",
            names::VERSION,
            "One-sided communication between the processes of a parallel program (GASPI)",
        ),
        // Builds compare this version: it is that of the interface.
        ("GPI2", "GPI2", "1.6.0", "GASPI under the name that GPI-2 programs ask for"),
    ] {
        let private: Vec<String> = STATIC_NEEDS.iter().map(|name| format!("-l{name}")).collect();
        let text = format!(
            "prefix={}\n\
             libdir=${{prefix}}/{libdir}\n\
             includedir=${{prefix}}/include\n\
             \n\
             Name: {name}\n\
             Description: {about}\n\
             Version: {version}\n\
             Libs: -L${{libdir}} -l{library}\n\
             Libs.private: {}\n\
             Cflags: -I${{includedir}}\n",
            prefix.display(),
            private.join(" "),
        );
        tree.write(&format!("{libdir}/pkgconfig/{name}.pc"), &text)?;
    }
    // From LIBDIR/cmake/GASPI to the prefix.
    let up = vec![".."; libdir.split('/').count() + 2].join("/");
    let mut numbers = names::VERSION.split('.');
    let values = [
        ("VERSION", names::VERSION),
        ("MAJOR", numbers.next().unwrap_or_default()),
        ("MINOR", numbers.next().unwrap_or_default()),
        ("UP", &up),
        ("LIBDIR", libdir),
        ("LIBRARY", names::LIBRARY),
        ("SONAME", names::SONAME),
        ("STATIC_LIBRARIES", &STATIC_NEEDS.join(";")),
    ];
    for name in ["GASPIConfig.cmake", "GASPIConfigVersion.cmake"] {
        let text = workspace::filled(&format!("packaging/cmake/{name}.in"), &values)?;
        tree.write(&format!("{libdir}/cmake/GASPI/{name}"), &text)?;
    }
    Ok(())
}
