import java.io.FileInputStream;
import java.lang.reflect.Field;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;

import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigDef.ConfigKey;

/**
 * Runs a main class whose Kafka clients take the settings of a file as their defaults. Some of Apache Kafka's test
 * programs take bootstrap servers and nothing else, so they could not log in to a listener with TLS and SASL.
 *
 * Arguments: the file, the main class, and its own arguments.
 */
public final class ClientDefaults {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileInputStream file = new FileInputStream(arguments[0])) {
            settings.load(file);
        }
        for (Class<?> client : List.of(ProducerConfig.class, ConsumerConfig.class, AdminClientConfig.class)) {
            Field known = client.getDeclaredField("CONFIG");
            known.setAccessible(true);
            for (ConfigKey key : ((ConfigDef) known.get(null)).configKeys().values()) {
                String value = settings.getProperty(key.name);
                if (value != null) {
                    Field standard = ConfigKey.class.getDeclaredField("defaultValue");
                    standard.setAccessible(true);
                    standard.set(key, ConfigDef.parseType(key.name, value, key.type));
                }
            }
        }
        String[] own = Arrays.copyOfRange(arguments, 2, arguments.length);
        Class.forName(arguments[1]).getMethod("main", String[].class).invoke(null, (Object) own);
    }
}
