package kraftpy.compat;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

/** Notes to print beside the outcome of the test that runs now. */
public final class Notes {
    private static final Set<String> NOTES = new LinkedHashSet<>();

    private Notes() {
    }

    public static synchronized void add(String note) {
        NOTES.add(note);
    }

    /** Return the notes since the last call. */
    static synchronized List<String> take() {
        List<String> taken = new ArrayList<>(NOTES);
        NOTES.clear();
        return taken;
    }
}
