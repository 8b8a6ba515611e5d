package kraftpy.compat;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.Key;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import java.util.Map;

/** Key stores of Java as PEM files: {@code kraftpy server} takes no others. */
final class KeyStores {
    private KeyStores() {
    }

    /**
     * Write the stores that the settings name as PEM files into the directory, and have the settings name these.
     *
     * <p>A listener has the type and the passwords of all listeners for what it does not set itself.
     */
    static void toPem(Map<String, String> settings, Path directory) throws IOException {
        Map<String, String> given = Map.copyOf(settings);
        for (String name : given.keySet()) {
            if (name.endsWith("ssl.keystore.location") || name.endsWith("ssl.truststore.location")) {
                String prefix = name.substring(0, name.indexOf("ssl."));
                String store = name.substring(prefix.length(), name.length() - "location".length());
                String type = own(given, prefix, store + "type", "JKS");
                if (!type.equals("PEM")) {
                    String password = own(given, prefix, store + "password", null);
                    String keyPassword = own(given, prefix, "ssl.key.password", password);
                    settings.put(prefix + store + "type", "PEM");
                    settings.keySet().removeAll(
                        List.of(prefix + store + "password", prefix + "ssl.key.password"));
                    Path path = Path.of(given.get(name));
                    if (Files.exists(path)) { // one that does not is for a listener that has its own
                        Path pem = Files.createTempFile(directory, "store", ".pem");
                        Files.writeString(pem, pem(path, type, password, keyPassword));
                        settings.put(name, pem.toString());
                    }
                }
            }
        }
    }

    private static String own(Map<String, String> given, String prefix, String name, String otherwise) {
        return given.getOrDefault(prefix + name, given.getOrDefault(name, otherwise));
    }

    private static String pem(Path path, String type, String password, String keyPassword) {
        try (InputStream file = Files.newInputStream(path)) {
            KeyStore store = KeyStore.getInstance(type);
            store.load(file, password == null ? null : password.toCharArray());
            StringBuilder written = new StringBuilder();
            for (String alias : Collections.list(store.aliases())) {
                if (store.isKeyEntry(alias)) {
                    Key key = store.getKey(alias, keyPassword.toCharArray());
                    append(written, "PRIVATE KEY", key.getEncoded());
                    for (Certificate each : store.getCertificateChain(alias)) {
                        append(written, "CERTIFICATE", each.getEncoded());
                    }
                } else {
                    append(written, "CERTIFICATE", store.getCertificate(alias).getEncoded());
                }
            }
            return written.toString();
        } catch (GeneralSecurityException error) {
            throw new IllegalStateException(path.toString(), error);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static void append(StringBuilder written, String kind, byte[] data) {
        Base64.Encoder encoder = Base64.getMimeEncoder(64, "\n".getBytes(StandardCharsets.US_ASCII));
        written.append("-----BEGIN ").append(kind).append("-----\n").append(encoder.encodeToString(data))
            .append("\n-----END ").append(kind).append("-----\n");
    }
}
