// Apache Kafka's StandardAuthorizer over the lines of standard input; one line of answers (1 or 0) for each world.
// W allowEveryone superUsers | A type name pattern principal host operation permission | Q principal host operation
// type name | T principal host operation type (authorizeByResourceType); fields between tabs, numbers are Kafka's.
import java.io.*;
import java.net.InetAddress;
import java.util.*;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.security.auth.*;
import org.apache.kafka.metadata.authorizer.*;
import org.apache.kafka.server.authorizer.*;

public class Oracle {
    record Context(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        public String listenerName() { return "L"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.SASL_SSL; }
        public int requestType() { return 0; }
        public int requestVersion() { return 0; }
        public String clientId() { return "c"; }
        public int correlationId() { return 0; }
    }

    static KafkaPrincipal principal(String text) { return new KafkaPrincipal("User", text.substring(5)); }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        List<String> world = new ArrayList<>();
        for (String line = in.readLine(); ; line = in.readLine()) {
            if ((line == null || line.startsWith("W")) && !world.isEmpty()) { answer(world); world.clear(); }
            if (line == null) break;
            world.add(line);
        }
    }

    static void answer(List<String> world) throws Exception {
        StandardAuthorizer authorizer = new StandardAuthorizer();
        Map<Uuid, StandardAcl> acls = new HashMap<>();
        StringBuilder out = new StringBuilder();
        boolean loaded = false;
        for (String line : world) {
            String[] f = line.split("\t", -1);
            if (f[0].equals("W")) {
                authorizer.configure(Map.of("allow.everyone.if.no.acl.found", f[1], "super.users", f[2], "node.id", "1"));
                authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
            } else if (f[0].equals("A")) {
                acls.put(Uuid.randomUuid(), new StandardAcl(ResourceType.fromCode(Byte.parseByte(f[1])), f[2],
                    PatternType.fromCode(Byte.parseByte(f[3])), f[4], f[5],
                    AclOperation.fromCode(Byte.parseByte(f[6])), AclPermissionType.fromCode(Byte.parseByte(f[7]))));
            } else {
                if (!loaded) { authorizer.loadSnapshot(acls); authorizer.completeInitialLoad(); loaded = true; }
                Context context = new Context(principal(f[1]), InetAddress.getByName(f[2]));
                AclOperation operation = AclOperation.fromCode(Byte.parseByte(f[3]));
                ResourceType type = ResourceType.fromCode(Byte.parseByte(f[4]));
                AuthorizationResult result = f[0].equals("T")
                    ? authorizer.authorizeByResourceType(context, operation, type)
                    : authorizer.authorize(context, List.of(new Action(operation,
                        new ResourcePattern(type, f[5], PatternType.LITERAL), 1, true, false))).get(0);
                out.append(result == AuthorizationResult.ALLOWED ? '1' : '0');
            }
        }
        System.out.println(out);
    }
}
