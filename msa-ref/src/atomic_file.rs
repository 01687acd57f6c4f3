//! Output files that appear whole or not at all.

use std::io;
use std::path::Path;

/// Calls `write` with the path of an empty temporary file in the folder of `path`, and renames that file to `path`
/// when it returns `Ok`. On an error, `path` is as it was before and the temporary file is gone.
///
/// # Errors
/// What `write` returns, or the error of creating or renaming the file.
pub fn write_atomically<E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let suffix = path.extension().map(|extension| format!(".{}", extension.to_string_lossy()));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".msa-");
    if let Some(suffix) = &suffix {
        builder.suffix(suffix); // the PNG encoder goes by the name
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The umask applies, as to any new file; tempfile's own default would be readable by the owner alone.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let temporary = builder.tempfile_in(folder)?;
    write(temporary.path())?;
    temporary.persist(path).map_err(|failed| failed.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_appears_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.txt");
        write_atomically(&path, |temporary| {
            assert!(!path.exists() && temporary.extension().unwrap() == "txt");
            std::fs::write(temporary, "whole")
        })
        .unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_error_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.txt");
        std::fs::write(&path, "old").unwrap();
        let failed = write_atomically(&path, |temporary| {
            std::fs::write(temporary, "half")?;
            Err(io::Error::other("stopped"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "stopped");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_in_the_way_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        std::fs::create_dir(&path).unwrap();
        assert!(write_atomically(&path, |temporary| std::fs::write(temporary, "x")).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(
            write_atomically(Path::new("/absent/out"), |temporary| std::fs::write(temporary, "x")).is_err()
        );
    }
}
